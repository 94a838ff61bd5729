-- Changes the state of claimed rows and ends their leases, where the claim holds and the row is in the state that the
-- change starts from. changes: columns to set, one JSON object for each row, all with the same keys.
CREATE OR REPLACE FUNCTION {complete_all}(
    owner text, ids {id_type}[], epochs bigint[], from_states text[], to_states text[], changes jsonb DEFAULT NULL)
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_ids {id_type}[] := ids;
    solehold_epochs bigint[] := epochs;
    solehold_owners text[] := array_fill(owner, ARRAY[cardinality(ids)]);
    solehold_froms text[] := from_states;
    solehold_tos text[] := to_states;
    solehold_done {id_type}[];
    columns text[] := '{}';
    managed text;
BEGIN
    PERFORM {check_batch}(owner, ids, epochs, ARRAY[cardinality(from_states), cardinality(to_states)]);
    IF changes IS NOT NULL THEN
        IF jsonb_typeof(changes) <> 'array' OR jsonb_array_length(changes) <> cardinality(ids)
            OR EXISTS (SELECT FROM jsonb_array_elements(changes) AS one WHERE jsonb_typeof(one.value) <> 'object') THEN
            RAISE EXCEPTION 'invalid changes: use a JSON array with one object for each row'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        columns := ARRAY(SELECT one.key FROM jsonb_object_keys(changes->0) AS one(key) ORDER BY one.key);
        IF EXISTS (SELECT FROM jsonb_array_elements(changes) AS one WHERE columns <>
            ARRAY(SELECT of_it.key FROM jsonb_object_keys(one.value) AS of_it(key) ORDER BY of_it.key)) THEN
            RAISE EXCEPTION 'invalid changes: all rows of a batch must set the same columns; send several batches'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT one.key INTO managed FROM unnest(columns) AS one(key) WHERE one.key = ANY({managed});
        IF managed IS NOT NULL OR cardinality(columns) > {columns_max} THEN
            RAISE EXCEPTION 'invalid changes: %', COALESCE(
                format('column %I is set by the function itself', managed), 'at most {columns_max} columns')
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF cardinality(columns) = 0 THEN
        {transition_sql};
    ELSE
        EXECUTE replace({transition_setting_sql},
            '/*changes*/', (SELECT string_agg(format(', %1$I = s.%1$I', one.key), '') FROM unnest(columns) AS one(key)))
        INTO solehold_done USING ids, epochs, solehold_owners, from_states, to_states,
            (SELECT jsonb_agg(one.value || jsonb_build_object({id_key}, one.id))
                FROM ROWS FROM (jsonb_array_elements(changes), unnest(ids)) AS one(value, id));
    END IF;
    RETURN QUERY SELECT * FROM {outcomes}(owner, ids, epochs, from_states, true, solehold_done);
END
$solehold$;

CREATE OR REPLACE FUNCTION {complete}(
    owner text, id {id_type}, epoch bigint, from_state text, to_state text, changes jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    result record;
BEGIN
    SELECT * INTO STRICT result FROM {complete_all}(owner, ARRAY[id], ARRAY[epoch], ARRAY[from_state], ARRAY[to_state],
        CASE WHEN changes IS NOT NULL THEN jsonb_build_array(changes) END);
    PERFORM {unless_lost}(result);
END
$solehold$;
