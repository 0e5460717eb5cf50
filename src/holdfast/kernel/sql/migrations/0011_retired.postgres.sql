-- What somebody took out of a session: the last of its runs that has still seen it, by its place in the line.
-- oldest_code: 8

-- up
alter table holdfast.message add column retired integer;

-- down
alter table holdfast.message drop column retired;
