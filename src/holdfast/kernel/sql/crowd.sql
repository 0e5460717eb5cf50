-- The crowd: what one worker asks for all workers.

-- name: ready_routes :many
-- The routes with something to claim, each once, and whether their queue is paused. It goes from each route to the
-- next by the primary key: the cost grows with the routes, not with the jobs. Counting the steps bounds the walk,
-- because PostgreSQL has no limit inside a recursion, and on SQLite a limit outside does not stop it.
with recursive found (route, steps) as (
    select (select k.route from holdfast.ready k order by k.route limit 1), 1
    union all
    select (select k.route from holdfast.ready k where k.route > found.route order by k.route limit 1), found.steps + 1
    from found where found.route is not null and found.steps < cast(:most as integer))
select found.route as id, (select q.paused_at from holdfast.route r join holdfast.queue q on q.name = r.queue
    where r.id = found.route) is not null as paused
from found where found.route is not null;

-- name: duties_held :many
-- Duties that nobody can take now, unless their holder is dead. So workers ask only for free duties, and lock no row
-- for nothing.
select d.name, d.holder, w.status is not null as alive, w.presence is not null and w.presence = 1 as present
from holdfast.duty d
left join holdfast.worker w on w.seq = d.holder and w.status in ('active', 'draining')
where d.holder is not null and d.held_until > holdfast.now_us()
order by d.name;
