-- No index of `run` has a column that changes while the run goes on: an update then touches the row alone, on its page.
-- oldest_code: 5

-- up
drop index holdfast.run_streaming;
drop index holdfast.run_state;
create index run_open on holdfast.run (created_at desc, id desc) where finalized_at is null;
-- Those that failed or were cancelled: only an answered run has an outcome.
create index run_unanswered on holdfast.run (created_at desc, id desc) where finalized_at is not null and outcome is null;
-- A run is changed about ten times, and the next version of a row must fit on its page.
alter table holdfast.run set (fillfactor = 50);

-- down
alter table holdfast.run set (fillfactor = 80);
drop index holdfast.run_unanswered;
drop index holdfast.run_open;
create index run_state on holdfast.run (state, created_at desc, id desc) where state <> 'completed';
create index run_streaming on holdfast.run (progressed_at) where state = 'streaming';
