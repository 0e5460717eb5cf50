-- A lease says how long it was given for, when that is not what the settings of workers say.
-- oldest_code: 8

-- up
-- The longest time that it was given at once; null: a worker claimed and renews it, or older code wrote it. A lease
-- that ends later than this shows that the clock went back.
alter table holdfast.lease add column ttl_us bigint;

-- down
alter table holdfast.lease drop column ttl_us;
