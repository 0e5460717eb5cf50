-- Agents, complete: batches, budgets, people, the inbox, compaction and forks.
-- oldest_code: 5

-- up
alter table holdfast.session
    add column generation text not null default '',
    add column compactions integer not null default 0,
    add column during text not null default 'queue',
    add column forked_from text,
    add column forked_at integer;
alter table holdfast.run
    add column interrupted text,
    add column fallback integer not null default 0,
    add column continued integer not null default 0,
    add column deadline_at bigint,
    add column forked_from text,
    add column forked_at integer,
    add column generation text not null default '';
alter table holdfast.turn
    add column mode text not null default 'streaming',
    add column generation text not null default '';
create index turn_ended on holdfast.turn (ended_at) where ended_at is not null;

-- What a compaction replaced keeps its place and is not sent any more, so places are unique among what is sent. `made_by`
-- is the compaction that wrote a message, `compacted` the one that took it out. A copy in a fork has its own fingerprint.
alter table holdfast.message
    add column compacted text,
    add column made_by text,
    add column fingerprint text;
drop index holdfast.message_place;
drop index holdfast.message_live;
create index message_place on holdfast.message (session, branch, ordinal);
create unique index message_live on holdfast.message (session, branch, ordinal) where live = 1;
create index message_compacted on holdfast.message (compacted) where compacted is not null;

-- Something that only a person can decide; while it is open, what it is about waits and holds no worker.
create table holdfast.inquiry (
    id text primary key,
    run text not null,
    session text not null,
    tenant text not null,
    kind text not null,
    call text,
    name text not null,
    digest text not null,
    data json not null,
    state text not null,
    fallback json,
    asked_at bigint not null,
    expires_at bigint,
    decided_at bigint,
    decided_by text,
    decision json,
    constraint inquiry_kind check (kind in ('approval', 'question', 'review', 'continuation', 'limit')),
    constraint inquiry_state check (state in ('open', 'approved', 'denied', 'answered', 'expired', 'withdrawn')),
    constraint inquiry_decided check ((state = 'open') = (decided_at is null))
);
create index inquiry_open on holdfast.inquiry (asked_at, id) where state = 'open';
create index inquiry_run on holdfast.inquiry (run, asked_at);
create index inquiry_call on holdfast.inquiry (call) where call is not null;

-- Messages for a run that is under way, until a turn takes them.
create table holdfast.steer (
    id text primary key,
    run text not null,
    ordinal integer not null,
    body json not null,
    sent_at bigint not null,
    turn integer
);
create index steer_open on holdfast.steer (run, ordinal) where turn is null;

-- Provider batches. Each is a job that submits, polls and collects; the requests are turns of runs.
create table holdfast.batch (
    id text primary key,
    lane text not null,
    model text not null,
    credential text not null,
    state text not null,
    job text not null,
    provider_id text,
    size integer not null default 0,
    bytes bigint not null default 0,
    applied integer not null default 0,
    attempts integer not null default 0,
    unknown integer not null default 0,
    held json,
    counts json,
    error text,
    polls integer not null default 0,
    created_at bigint not null,
    intent_at bigint,
    troubled_at bigint,
    submitted_at bigint,
    polled_at bigint,
    ended_at bigint,
    constraint batch_state check (state in
        ('gathering', 'submitting', 'searching', 'submitted', 'processing', 'canceling', 'collecting', 'ended', 'failed')),
    constraint batch_ended check ((state in ('ended', 'failed')) = (ended_at is not null))
);
create unique index batch_gathering on holdfast.batch (lane) where state = 'gathering';
create unique index batch_provider_id on holdfast.batch (provider_id) where provider_id is not null;
create index batch_listed on holdfast.batch (created_at desc, id desc);

create table holdfast.batch_request (
    custom_id text primary key,
    batch text not null,
    run text not null,
    job bigint not null,
    turn integer not null,
    attempt integer not null,
    body json,
    bytes integer not null,
    state text not null,
    outcome text,
    created_at bigint not null,
    constraint batch_request_state check (state in ('waiting', 'sent', 'answered', 'applied', 'dropped'))
);
create index batch_request_open on holdfast.batch_request (batch, custom_id) where state in ('waiting', 'sent');
create index batch_request_batch on holdfast.batch_request (batch);
create index batch_request_run on holdfast.batch_request (run, turn);

create table holdfast.compaction (
    id text primary key,
    session text not null,
    branch text not null,
    run text,
    state text not null,
    strategy text not null,
    trigger text not null,
    model text not null,
    config json not null,
    before_generation text not null,
    tokens_before bigint not null default 0,
    tokens_after bigint,
    removed integer not null default 0,
    pruned integer not null default 0,
    summary text,
    attempts integer not null default 1,
    unknown integer not null default 0,
    charged bigint not null default 0,
    usage json,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    cost_nano bigint not null default 0,
    error text,
    started_at bigint not null,
    ended_at bigint,
    restored_at bigint,
    constraint compaction_state check (state in ('calling', 'done', 'failed', 'restored'))
);
create index compaction_session on holdfast.compaction (session, started_at desc, id desc);
create index compaction_ended on holdfast.compaction (ended_at) where ended_at is not null;
create index compaction_run on holdfast.compaction (run) where run is not null;

-- What may be spent: by a session, a tenant or everybody, for ever or in each period of so many microseconds.
create table holdfast.budget (
    id text primary key,
    scope text not null,
    subject text not null,
    period_us bigint not null default 0,
    limit_nano bigint not null,
    policy text not null,
    updated_at bigint not null,
    constraint budget_scope check (scope in ('session', 'tenant', 'everybody')),
    constraint budget_policy check (policy in ('end', 'ask', 'wait'))
);
create unique index budget_subject on holdfast.budget (scope, subject, period_us);

create table holdfast.budget_use (
    budget text not null,
    period bigint not null,
    spent_nano bigint not null default 0,
    reserved_nano bigint not null default 0,
    primary key (budget, period)
);

-- What calls under way may cost, until they are settled. A summary for no run is reserved by its compaction, and given up
-- at a time after which nobody settles it any more.
create table holdfast.reservation (
    run text not null,
    turn integer not null,
    budget text not null,
    period bigint not null,
    nano bigint not null,
    lapses_at bigint,
    primary key (run, turn, budget)
);
create index reservation_lapses on holdfast.reservation (lapses_at) where lapses_at is not null;

-- down
drop table holdfast.reservation;
drop table holdfast.budget_use;
drop table holdfast.budget;
drop table holdfast.compaction;
drop table holdfast.batch_request;
drop table holdfast.batch;
drop table holdfast.steer;
drop table holdfast.inquiry;
drop index holdfast.message_compacted;
drop index holdfast.message_live;
drop index holdfast.message_place;
delete from holdfast.message where live = 0 and compacted is not null;
alter table holdfast.message
    drop column compacted,
    drop column made_by,
    drop column fingerprint;
drop index holdfast.turn_ended;
alter table holdfast.turn
    drop column mode,
    drop column generation;
alter table holdfast.run
    drop column interrupted,
    drop column fallback,
    drop column continued,
    drop column deadline_at,
    drop column forked_from,
    drop column forked_at,
    drop column generation;
alter table holdfast.session
    drop column generation,
    drop column compactions,
    drop column during,
    drop column forked_from,
    drop column forked_at;
create unique index message_place on holdfast.message (session, branch, ordinal);
create index message_live on holdfast.message (session, branch, ordinal) where live = 1;
