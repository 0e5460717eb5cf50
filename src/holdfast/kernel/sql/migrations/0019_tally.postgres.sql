-- What has ended, counted by minute, hour and day; failures of one kind as one; and indexes for lists of calls.
-- oldest_code: 8

-- up
-- `subject` is what is counted. `grain` is 'minute', 'hour' or 'day', of everybody: there `tenant` is empty; or
-- 'tenant_hour' or 'tenant_day', of one tenant. `at` is when the time begins.
create table holdfast.tally (
    subject text not null,
    grain text not null,
    tenant text not null,
    at bigint not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    number bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_nano bigint not null,
    constraint tally_grain check (grain in ('minute', 'hour', 'day', 'tenant_hour', 'tenant_day')),
    primary key (subject, grain, tenant, at, source, kind, mode, state)
);
create index tally_at on holdfast.tally (grain, at);

-- How many waited or took so long: bucket n is less than 2 to the power of n milliseconds, and at least half of that.
create table holdfast.tally_time (
    subject text not null,
    grain text not null,
    tenant text not null,
    at bigint not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    measure text not null,
    bucket integer not null,
    number bigint not null,
    constraint tally_time_measure check (measure in ('wait', 'duration')),
    primary key (subject, grain, tenant, at, source, kind, mode, state, measure, bucket)
);
create index tally_time_at on holdfast.tally_time (grain, at);

-- Everything of a source that ended up to this moment is in the tally.
create table holdfast.tally_mark (
    subject text not null,
    source text not null,
    at bigint not null,
    primary key (subject, source)
);

-- Failures that differ only in numbers and ids. `last_id` names the last of them.
create table holdfast.failure_group (
    id text primary key,
    subject text not null,
    tenant text not null,
    kind text not null,
    error text not null,
    message text not null,
    number bigint not null,
    first_at bigint not null,
    last_at bigint not null,
    last_id text not null
);
create index failure_group_last on holdfast.failure_group (last_at desc, id desc);
create index failure_group_tenant on holdfast.failure_group (tenant, last_at desc, id desc);

create index tool_call_listed on holdfast.tool_call (finished_at desc, id desc) where finished_at is not null;
create index tool_call_failed on holdfast.tool_call (name, finished_at desc, id desc) where state = 'failed';
create index session_prefix on holdfast.session (key collate "C") where key is not null;

-- What is not there any more was counted when it was removed, by days. The first hour of a day has all of it.
insert into holdfast.tally (subject, grain, tenant, at, source, kind, mode, state, number, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
select case agent when '(compaction)' then 'compactions' else 'turns' end, g.grain, tenant, day * 86400000000, agent,
    model, mode, case agent when '(compaction)' then 'done' else 'completed' end, turns, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano
from holdfast.usage_total cross join (select 'tenant_day' as grain union all select 'tenant_hour') as g;
insert into holdfast.tally (subject, grain, tenant, at, source, kind, mode, state, number, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
select subject, substr(grain, 8), '', at, source, kind, mode, state, sum(number), sum(input_tokens), sum(output_tokens),
    sum(cache_write_tokens), sum(cache_read_tokens), sum(cost_nano)
from holdfast.tally where grain in ('tenant_day', 'tenant_hour') group by subject, grain, at, source, kind, mode, state;

-- down
drop index holdfast.session_prefix;
drop index holdfast.tool_call_failed;
drop index holdfast.tool_call_listed;
drop table holdfast.failure_group;
drop table holdfast.tally_mark;
drop table holdfast.tally_time;
drop table holdfast.tally;
