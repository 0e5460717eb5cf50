-- No index of `run` has a column that changes while the run goes on: an update then touches the row alone.
-- oldest_code: 5

-- up
drop index run_streaming;
drop index run_state;
create index run_open on run (created_at desc, id desc) where finalized_at is null;
-- Those that failed or were cancelled: only an answered run has an outcome.
create index run_unanswered on run (created_at desc, id desc) where finalized_at is not null and outcome is null;

-- down
drop index run_unanswered;
drop index run_open;
create index run_state on run (state, created_at desc, id desc) where state <> 'completed';
create index run_streaming on run (progressed_at) where state = 'streaming';
