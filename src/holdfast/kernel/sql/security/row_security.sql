-- Row security of PostgreSQL, for requests of the web that belong to a tenant. They take the role `holdfast_web`, which
-- nobody logs in with, and name the tenant in the setting `holdfast.tenant`, both for one transaction alone.
--
-- A permissive policy lets everybody see everything, so that a worker pays nothing. A restrictive one holds for the role
-- alone. It asks who the current user is, because on PostgreSQL 15 a login that may take a role inherits its policies.
-- A blank line ends a statement.

-- on

do $$
begin
    if not exists (select from pg_roles where rolname = 'holdfast_web') then
        create role holdfast_web nologin noinherit;
    end if;
    if exists (select from pg_roles where rolname = 'holdfast_web' and (rolbypassrls or rolsuper or rolcanlogin)) then
        raise exception 'role holdfast_web may log in or bypass row security: drop it, and migrate again';
    end if;
    if current_setting('server_version_num')::integer >= 160000 then
        execute 'grant holdfast_web to current_user with inherit false, set true';
    else
        grant holdfast_web to current_user;
    end if;
end
$$

grant usage on schema holdfast to holdfast_web

grant select, insert, update, delete on all tables in schema holdfast to holdfast_web

grant usage, select on all sequences in schema holdfast to holdfast_web

revoke all on holdfast.token, holdfast.login, holdfast.audit, holdfast.audit_head, holdfast.request_key, holdfast.resp_key
    from holdfast_web

-- A view reads with the rights of its owner, unless it says otherwise.
do $$
declare
    each record;
begin
    for each in select viewname as name from pg_views where schemaname = 'holdfast' loop
        execute format('alter view holdfast.%I set (security_invoker = true)', each.name);
    end loop;
end
$$

-- `@mine` is the tenant. What follows a run or a session is looked up one by one: a subquery that is not scalar may be
-- planned as a table of all the tenant's runs. `@reads`: in a change, jobs of others are there, because a job that ends
-- makes room in lanes for the next one. So are blocks, because one statement inserts a block with its message, which
-- is not seen there yet, and budgets and totals, which a change must keep to.
do $$
declare
    each record;
    mine constant text := 'current_setting(''holdfast.tenant'', true)';
    reads constant text := 'current_setting(''transaction_read_only'') = ''off'' or ';
begin
    for each in
        select name, replace(replace(condition, '@mine', mine), '@reads ', reads) as condition from (values
            ('session', 'tenant = @mine'),
            ('run', 'tenant = @mine'),
            ('inquiry', 'tenant = @mine'),
            ('plan', 'tenant = @mine'),
            ('action', 'tenant = @mine'),
            ('plan_job', 'tenant = @mine'),
            ('agent', 'tenant in ('''', @mine)'),
            ('agent_version', '(select a.tenant from holdfast.agent a where a.id = agent) in ('''', @mine)'),
            ('message', '(select s.tenant from holdfast.session s where s.id = session) = @mine'),
            ('compaction', '(select s.tenant from holdfast.session s where s.id = session) = @mine'),
            ('session_total', '(select s.tenant from holdfast.session s where s.id = session) = @mine'),
            ('block', '@reads (select m.id from holdfast.message m where m.id = message) is not null'),
            ('turn', '(select r.tenant from holdfast.run r where r.id = run) = @mine'),
            ('tool_call', '(select r.tenant from holdfast.run r where r.id = run) = @mine'),
            ('run_event', '(select r.tenant from holdfast.run r where r.id = run) = @mine'),
            ('steer', '(select r.tenant from holdfast.run r where r.id = run) = @mine'),
            ('batch_request', '(select r.tenant from holdfast.run r where r.id = run) = @mine'),
            ('job', '@reads tenant = @mine'),
            ('attempt', '@reads (select j.tenant from holdfast.job j where j.seq = attempt.job) = @mine'),
            ('ended', '@reads (select j.tenant from holdfast.job j where j.seq = ended.seq) = @mine'),
            ('progress', '@reads (select j.tenant from holdfast.job j where j.seq = progress.job) = @mine'),
            ('step', '@reads (select j.tenant from holdfast.job j where j.seq = step.job) = @mine'),
            ('usage_total', '@reads tenant = @mine'),
            ('budget', '@reads scope = ''everybody'' or (scope = ''tenant'' and subject in ('''', @mine)) or '
                '(select s.tenant from holdfast.session s where s.id = subject) = @mine')
        ) as policies (name, condition)
        where exists (select from pg_tables t where t.schemaname = 'holdfast' and t.tablename = policies.name)
    loop
        execute format('alter table holdfast.%I enable row level security', each.name);
        execute format('drop policy if exists everybody on holdfast.%I', each.name);
        execute format('create policy everybody on holdfast.%I using (true) with check (true)', each.name);
        execute format('drop policy if exists tenants on holdfast.%I', each.name);
        execute format('create policy tenants on holdfast.%I as restrictive to holdfast_web '
            'using (current_user <> ''holdfast_web'' or %s) with check (current_user <> ''holdfast_web'' or %s)',
            each.name, each.condition, each.condition);
    end loop;
end
$$

-- off

do $$
declare
    each record;
begin
    for each in select tablename as name from pg_policies where schemaname = 'holdfast' and policyname = 'tenants' loop
        execute format('drop policy tenants on holdfast.%I', each.name);
        execute format('drop policy if exists everybody on holdfast.%I', each.name);
        execute format('alter table holdfast.%I disable row level security', each.name);
    end loop;
    for each in select viewname as name from pg_views where schemaname = 'holdfast' loop
        execute format('alter view holdfast.%I reset (security_invoker)', each.name);
    end loop;
    if exists (select from pg_roles where rolname = 'holdfast_web') then
        drop owned by holdfast_web;
        begin
            drop role holdfast_web;
        exception when dependent_objects_still_exist then
            raise notice 'another database uses the role holdfast_web: it stays';
        end;
    end if;
end
$$
