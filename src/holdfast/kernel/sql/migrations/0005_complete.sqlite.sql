-- Agents, complete: batches, budgets, people, the inbox, compaction and forks.
-- oldest_code: 5

-- up
alter table session add column generation text not null default '';
alter table session add column compactions integer not null default 0;
alter table session add column during text not null default 'queue';
alter table session add column forked_from text;
alter table session add column forked_at integer;
alter table run add column interrupted text;
alter table run add column fallback integer not null default 0;
alter table run add column continued integer not null default 0;
alter table run add column deadline_at integer;
alter table run add column forked_from text;
alter table run add column forked_at integer;
alter table run add column generation text not null default '';
alter table turn add column mode text not null default 'streaming';
alter table turn add column generation text not null default '';
create index turn_ended on turn (ended_at) where ended_at is not null;

-- What a compaction replaced keeps its place and is not sent any more, so places are unique among what is sent. `made_by`
-- is the compaction that wrote a message, `compacted` the one that took it out. A copy in a fork has its own fingerprint.
alter table message add column compacted text;
alter table message add column made_by text;
alter table message add column fingerprint text;
drop index message_place;
drop index message_live;
create index message_place on message (session, branch, ordinal);
create unique index message_live on message (session, branch, ordinal) where live = 1;
create index message_compacted on message (compacted) where compacted is not null;

-- Something that only a person can decide; while it is open, what it is about waits and holds no worker.
create table inquiry (
    id text primary key,
    run text not null,
    session text not null,
    tenant text not null,
    kind text not null,
    call text,
    name text not null,
    digest text not null,
    data text not null,
    state text not null,
    fallback text,
    asked_at integer not null,
    expires_at integer,
    decided_at integer,
    decided_by text,
    decision text,
    constraint inquiry_kind check (kind in ('approval', 'question', 'review', 'continuation', 'limit')),
    constraint inquiry_state check (state in ('open', 'approved', 'denied', 'answered', 'expired', 'withdrawn')),
    constraint inquiry_decided check ((state = 'open') = (decided_at is null))
) strict;
create index inquiry_open on inquiry (asked_at, id) where state = 'open';
create index inquiry_run on inquiry (run, asked_at);
create index inquiry_call on inquiry (call) where call is not null;

-- Messages for a run that is under way, until a turn takes them.
create table steer (
    id text primary key,
    run text not null,
    ordinal integer not null,
    body text not null,
    sent_at integer not null,
    turn integer
) strict;
create index steer_open on steer (run, ordinal) where turn is null;

-- Provider batches. Each is a job that submits, polls and collects; the requests are turns of runs.
create table batch (
    id text primary key,
    lane text not null,
    model text not null,
    credential text not null,
    state text not null,
    job text not null,
    provider_id text,
    size integer not null default 0,
    bytes integer not null default 0,
    applied integer not null default 0,
    attempts integer not null default 0,
    unknown integer not null default 0,
    held text,
    counts text,
    error text,
    polls integer not null default 0,
    created_at integer not null,
    intent_at integer,
    troubled_at integer,
    submitted_at integer,
    polled_at integer,
    ended_at integer,
    constraint batch_state check (state in
        ('gathering', 'submitting', 'searching', 'submitted', 'processing', 'canceling', 'collecting', 'ended', 'failed')),
    constraint batch_ended check ((state in ('ended', 'failed')) = (ended_at is not null))
) strict;
create unique index batch_gathering on batch (lane) where state = 'gathering';
create unique index batch_provider_id on batch (provider_id) where provider_id is not null;
create index batch_listed on batch (created_at desc, id desc);

create table batch_request (
    custom_id text primary key,
    batch text not null,
    run text not null,
    job integer not null,
    turn integer not null,
    attempt integer not null,
    body text,
    bytes integer not null,
    state text not null,
    outcome text,
    created_at integer not null,
    constraint batch_request_state check (state in ('waiting', 'sent', 'answered', 'applied', 'dropped'))
) strict;
create index batch_request_open on batch_request (batch, custom_id) where state in ('waiting', 'sent');
create index batch_request_batch on batch_request (batch);
create index batch_request_run on batch_request (run, turn);

create table compaction (
    id text primary key,
    session text not null,
    branch text not null,
    run text,
    state text not null,
    strategy text not null,
    trigger text not null,
    model text not null,
    config text not null,
    before_generation text not null,
    tokens_before integer not null default 0,
    tokens_after integer,
    removed integer not null default 0,
    pruned integer not null default 0,
    summary text,
    attempts integer not null default 1,
    unknown integer not null default 0,
    charged integer not null default 0,
    usage text,
    input_tokens integer not null default 0,
    output_tokens integer not null default 0,
    cache_write_tokens integer not null default 0,
    cache_read_tokens integer not null default 0,
    cost_nano integer not null default 0,
    error text,
    started_at integer not null,
    ended_at integer,
    restored_at integer,
    constraint compaction_state check (state in ('calling', 'done', 'failed', 'restored'))
) strict;
create index compaction_session on compaction (session, started_at desc, id desc);
create index compaction_ended on compaction (ended_at) where ended_at is not null;
create index compaction_run on compaction (run) where run is not null;

-- What may be spent: by a session, a tenant or everybody, for ever or in each period of so many microseconds.
create table budget (
    id text primary key,
    scope text not null,
    subject text not null,
    period_us integer not null default 0,
    limit_nano integer not null,
    policy text not null,
    updated_at integer not null,
    constraint budget_scope check (scope in ('session', 'tenant', 'everybody')),
    constraint budget_policy check (policy in ('end', 'ask', 'wait'))
) strict;
create unique index budget_subject on budget (scope, subject, period_us);

create table budget_use (
    budget text not null,
    period integer not null,
    spent_nano integer not null default 0,
    reserved_nano integer not null default 0,
    primary key (budget, period)
) strict;

-- What calls under way may cost, until they are settled. A summary for no run is reserved by its compaction, and given up
-- at a time after which nobody settles it any more.
create table reservation (
    run text not null,
    turn integer not null,
    budget text not null,
    period integer not null,
    nano integer not null,
    lapses_at integer,
    primary key (run, turn, budget)
) strict;
create index reservation_lapses on reservation (lapses_at) where lapses_at is not null;

-- down
drop table reservation;
drop table budget_use;
drop table budget;
drop table compaction;
drop table batch_request;
drop table batch;
drop table steer;
drop table inquiry;
drop index message_compacted;
drop index message_live;
drop index message_place;
delete from message where live = 0 and compacted is not null;
alter table message drop column compacted;
alter table message drop column made_by;
alter table message drop column fingerprint;
drop index turn_ended;
alter table turn drop column mode;
alter table turn drop column generation;
alter table run drop column interrupted;
alter table run drop column fallback;
alter table run drop column continued;
alter table run drop column deadline_at;
alter table run drop column forked_from;
alter table run drop column forked_at;
alter table run drop column generation;
alter table session drop column generation;
alter table session drop column compactions;
alter table session drop column during;
alter table session drop column forked_from;
alter table session drop column forked_at;
create unique index message_place on message (session, branch, ordinal);
create index message_live on message (session, branch, ordinal) where live = 1;
