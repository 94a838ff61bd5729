-- Guards {table}. The row trigger fires after the write and in its transaction, when no other
-- trigger can change the row any more; if it fails, the write is undone. TRUNCATE needs a trigger of its own, which
-- fires while the rows are there.
CREATE OR REPLACE TRIGGER solehold_fence AFTER INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {admit}({kind}, '{column}');
CREATE OR REPLACE TRIGGER solehold_fence_truncate BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {admit}({kind}, '{column}');
