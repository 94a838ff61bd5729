-- Makes buried rows claimable again, in the state in which they were buried and with no attempt counted.
-- Outcomes: done or not_buried.
CREATE OR REPLACE FUNCTION {revive_all}(ids {id_type}[]) RETURNS TABLE (id {id_type}, outcome text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {search_path} AS $solehold$
DECLARE
    done {id_type}[];
BEGIN
    PERFORM {check_batch}('-', ids, array_fill(0::bigint, ARRAY[cardinality(ids)]));
    EXECUTE {revive_sql}
    INTO done USING ids;
    RETURN QUERY SELECT one.id, CASE WHEN one.id = ANY(done) THEN 'done' ELSE 'not_buried' END
        FROM unnest(ids) AS one(id);
END
$solehold$;

-- Fails with SQLSTATE {NOT_BURIED} if the row is not buried.
CREATE OR REPLACE FUNCTION {revive}(id {id_type}) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
BEGIN
    IF (SELECT one.outcome FROM {revive_all}(ARRAY[id]) AS one) <> 'done' THEN
        RAISE EXCEPTION 'row % of {name} is not buried', id USING ERRCODE = '{NOT_BURIED}';
    END IF;
END
$solehold$;
