-- Guards {table}. The row trigger fires after the write and in its transaction, when no other
-- trigger can change the row any more; if it fails, the write is undone. TRUNCATE needs a trigger of its own, which
-- fires while the rows are there.
CREATE OR REPLACE TRIGGER solehold_fence AFTER INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {admit}({kind}, '{column}');
CREATE OR REPLACE TRIGGER solehold_fence_truncate BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {admit}({kind}, '{column}');
-- A partition that is truncated by its own name fires only its own trigger. PostgreSQL makes row triggers for new
-- partitions and none for TRUNCATE: apply this again when a partition was made or attached.
DO $body$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT tree.relid FROM pg_partition_tree($name${table}$name$) AS tree JOIN pg_class c ON c.oid = tree.relid
        WHERE tree.level > 0 AND c.relkind IN ('r', 'p')
    LOOP
        EXECUTE 'CREATE OR REPLACE TRIGGER solehold_fence_truncate BEFORE TRUNCATE ON ' || part
            || $call$ FOR EACH STATEMENT EXECUTE FUNCTION {admit}({kind}, '{column}')$call$;
    END LOOP;
END $body$;
