-- The ids next to each of these, whether or not it exists: what a short form of it could be confused with.

-- name: agents_beside :many
select g.id, (select t.id from holdfast.agent t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.agent t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: sessions_beside :many
select g.id, (select t.id from holdfast.session t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.session t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: runs_beside :many
select g.id, (select t.id from holdfast.run t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.run t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: calls_beside :many
select g.id, (select t.id from holdfast.tool_call t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.tool_call t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: inquiries_beside :many
select g.id, (select t.id from holdfast.inquiry t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.inquiry t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: batches_beside :many
select g.id, (select t.id from holdfast.batch t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.batch t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);

-- name: budgets_beside :many
select g.id, (select t.id from holdfast.budget t where t.id < g.id order by t.id desc limit 1) as before,
    (select t.id from holdfast.budget t where t.id > g.id order by t.id limit 1) as after
from rows(:ids) as g (id text);
