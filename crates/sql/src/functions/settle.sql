-- What the functions below share. They run under the search path of those that call them.
CREATE OR REPLACE FUNCTION {check_owner}(owner text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SECURITY INVOKER AS $solehold$
BEGIN
    IF (octet_length(owner) BETWEEN 1 AND {owner_bytes_max} AND owner !~ '[[:cntrl:]]') IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid owner %: use 1 to {owner_bytes_max} bytes without control characters',
            quote_nullable(owner) USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$solehold$;

CREATE OR REPLACE FUNCTION {check_seconds}(
    argument text, seconds double precision[], low double precision, high double precision) RETURNS void
LANGUAGE plpgsql IMMUTABLE SECURITY INVOKER AS $solehold$
DECLARE
    one double precision;
BEGIN
    FOREACH one IN ARRAY seconds LOOP
        IF (one BETWEEN low AND high) IS NOT TRUE THEN
            RAISE EXCEPTION 'invalid % %: use % to % seconds', argument, one, low, high
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
END
$solehold$;

-- Refuses a batch that names a row twice, has a null, or arrays of different lengths.
CREATE OR REPLACE FUNCTION {check_batch}(
    owner text, ids {id_type}[], epochs bigint[], other_lengths integer[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql IMMUTABLE SECURITY INVOKER AS $solehold$
BEGIN
    PERFORM {check_owner}(owner);
    IF cardinality(ids) > {batch_rows_max} THEN
        RAISE EXCEPTION 'invalid number of rows %: at most {batch_rows_max}; send several batches', cardinality(ids)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF (cardinality(epochs) = cardinality(ids) AND cardinality(ids) = ALL(other_lengths)) IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid batch: the arrays must have the same length, one element for each row'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF array_position(ids, NULL) IS NOT NULL OR array_position(epochs, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'invalid batch: an id or an epoch is null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF cardinality(ids) > 1 AND (SELECT count(DISTINCT one.id) FROM unnest(ids) AS one(id)) < cardinality(ids) THEN
        RAISE EXCEPTION 'invalid batch: name each row once' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$solehold$;

-- The outcome of each row of a batch, in its order: done, or why the claim was lost and what the row is like now.
CREATE OR REPLACE FUNCTION {outcomes}(
    owner text, ids {id_type}[], epochs bigint[], from_states text[], checks_state boolean, done {id_type}[])
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 AS $solehold$
BEGIN
    IF cardinality(done) = cardinality(ids) THEN
        RETURN QUERY SELECT one.id, 'done', NULL::text, NULL::bigint, NULL::text FROM unnest(ids) AS one(id);
        RETURN;
    END IF;
    RETURN QUERY EXECUTE {explain}
    USING ids, epochs, array_fill(owner, ARRAY[cardinality(ids)]), from_states, checks_state, done;
END
$solehold$;

-- Fails with SQLSTATE {LOST} unless the only row of a batch is done: the caller's transaction cannot commit.
CREATE OR REPLACE FUNCTION {unless_lost}(result record) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER AS $solehold$
BEGIN
    IF result.outcome IN ('expired', 'taken', 'ended', 'state', 'gone') THEN
        RAISE EXCEPTION 'the claim on row % of {name} is lost (%)', result.id, result.outcome
            USING ERRCODE = '{LOST}', DETAIL = CASE result.outcome
                WHEN 'expired' THEN 'The lease has expired.'
                WHEN 'taken' THEN format('%s has claimed the row (epoch %s).',
                    COALESCE(result.current_owner, 'Another worker'), result.current_epoch)
                WHEN 'ended' THEN 'The claim has ended already.'
                WHEN 'state' THEN
                    COALESCE('The row is in state ' || result.current_state || '.', 'The row has no state.')
                ELSE 'The row no longer exists.' END,
            HINT = 'Roll back, and drop this row: nothing was changed.';
    END IF;
END
$solehold$;

-- Prolongs a claim to lease_seconds from now, never shortening it.
CREATE OR REPLACE FUNCTION {extend_all}(owner text, ids {id_type}[], epochs bigint[], lease_seconds double precision)
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_ids {id_type}[] := ids;
    solehold_epochs bigint[] := epochs;
    solehold_owners text[] := array_fill(owner, ARRAY[cardinality(ids)]);
    solehold_ms double precision[] := array_fill(lease_seconds * 1000, ARRAY[cardinality(ids)]);
    solehold_done {id_type}[];
BEGIN
    PERFORM {check_batch}(owner, ids, epochs),
        {check_seconds}('lease_seconds', ARRAY[lease_seconds], {lease_min}, {lease_max});
    {extend_sql};
    RETURN QUERY SELECT * FROM {outcomes}(owner, ids, epochs, NULL, false, solehold_done);
END
$solehold$;

CREATE OR REPLACE FUNCTION {extend}(owner text, id {id_type}, epoch bigint, lease_seconds double precision) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    result record;
BEGIN
    SELECT * INTO STRICT result FROM {extend_all}(owner, ARRAY[id], ARRAY[epoch], lease_seconds);
    PERFORM {unless_lost}(result);
END
$solehold$;

-- Gives a claim back: the row may be claimed at once, and the attempt does not count.
CREATE OR REPLACE FUNCTION {release_all}(owner text, ids {id_type}[], epochs bigint[])
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_ids {id_type}[] := ids;
    solehold_epochs bigint[] := epochs;
    solehold_owners text[] := array_fill(owner, ARRAY[cardinality(ids)]);
    solehold_done {id_type}[];
BEGIN
    PERFORM {check_batch}(owner, ids, epochs);
    {release_sql};
    RETURN QUERY SELECT * FROM {outcomes}(owner, ids, epochs, NULL, false, solehold_done);
END
$solehold$;

CREATE OR REPLACE FUNCTION {release}(owner text, id {id_type}, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    result record;
BEGIN
    SELECT * INTO STRICT result FROM {release_all}(owner, ARRAY[id], ARRAY[epoch]);
    PERFORM {unless_lost}(result);
END
$solehold$;

-- Gives a claim back, not to be claimed again before its pause has passed. attempts: 'reset' when the row was observed,
-- 'restore' when the attempt says nothing about the row. An attempt that counts is a matter of {fail}.
CREATE OR REPLACE FUNCTION {defer_all}(
    owner text, ids {id_type}[], epochs bigint[], pause_seconds double precision[], attempts text DEFAULT 'reset')
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_ids {id_type}[] := ids;
    solehold_epochs bigint[] := epochs;
    solehold_owners text[] := array_fill(owner, ARRAY[cardinality(ids)]);
    solehold_ms double precision[] := ARRAY(
        SELECT one.pause * 1000 FROM unnest(pause_seconds) WITH ORDINALITY AS one(pause, at) ORDER BY one.at);
    solehold_done {id_type}[];
BEGIN
    PERFORM {check_batch}(owner, ids, epochs, ARRAY[cardinality(pause_seconds)]),
        {check_seconds}('pause_seconds', pause_seconds, 0, {defer_max});
    IF (attempts IN ('reset', 'restore')) IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid attempts %: use ''reset'' or ''restore''', quote_nullable(attempts)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF attempts = 'reset' THEN
        {defer_resetting_sql};
    ELSE
        {defer_restoring_sql};
    END IF;
    RETURN QUERY SELECT * FROM {outcomes}(owner, ids, epochs, NULL, false, solehold_done);
END
$solehold$;

CREATE OR REPLACE FUNCTION {defer}(
    owner text, id {id_type}, epoch bigint, pause_seconds double precision, attempts text DEFAULT 'reset') RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    result record;
BEGIN
    SELECT * INTO STRICT result FROM {defer_all}(owner, ARRAY[id], ARRAY[epoch], ARRAY[pause_seconds], attempts);
    PERFORM {unless_lost}(result);
END
$solehold$;

-- The attempt failed: the row is buried with the reason if it has been claimed attempts_max times without a result,
-- and comes back after its pause otherwise. attempts_max => 0 buries at once, NULL never. Outcomes: deferred or buried.
CREATE OR REPLACE FUNCTION {fail_all}(
    owner text, ids {id_type}[], epochs bigint[], reasons text[], pause_seconds double precision[],
    attempts_max integer DEFAULT {attempts_max})
RETURNS TABLE (id {id_type}, outcome text, current_owner text, current_epoch bigint, current_state text)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_ids {id_type}[] := ids;
    solehold_epochs bigint[] := epochs;
    solehold_owners text[] := array_fill(owner, ARRAY[cardinality(ids)]);
    -- Whatever it counts, a row that is claimed again meanwhile has another epoch.
    hopeless {id_type}[] := '{}';
    buried {id_type}[] := '{}';
    solehold_ms double precision[] := ARRAY(
        SELECT one.pause * 1000 FROM unnest(pause_seconds) WITH ORDINALITY AS one(pause, at) ORDER BY one.at);
    solehold_done {id_type}[];
BEGIN
    PERFORM {check_batch}(owner, ids, epochs, ARRAY[cardinality(reasons), cardinality(pause_seconds)]),
        {check_seconds}('pause_seconds', pause_seconds, 0, {defer_max});
    IF attempts_max IS NOT NULL THEN
        IF attempts_max > 0 AND NOT {counts_attempts} OR NOT {can_bury} THEN
            RAISE EXCEPTION 'invalid attempts_max %: {name} lacks {missing_to_bury}', attempts_max
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Use attempts_max => NULL, or add the columns.';
        END IF;
        EXECUTE $sql$SELECT ARRAY(SELECT t.{id} FROM {table} AS t WHERE t.{id} = ANY($1) AND {attempts} >= $2)$sql$
        INTO hopeless USING ids, attempts_max;
        EXECUTE {bury_sql}
        INTO buried USING hopeless,
            ARRAY(SELECT one.epoch FROM unnest(ids, epochs) AS one(id, epoch)
                JOIN unnest(hopeless) WITH ORDINALITY AS chosen(id, at) ON chosen.id = one.id ORDER BY chosen.at),
            array_fill(owner, ARRAY[cardinality(hopeless)]),
            ARRAY(SELECT left(one.reason, {reason_max}) FROM unnest(ids, reasons) AS one(id, reason)
                JOIN unnest(hopeless) WITH ORDINALITY AS chosen(id, at) ON chosen.id = one.id ORDER BY chosen.at);
    END IF;
    {defer_counting_sql};
    RETURN QUERY SELECT one.id,
        CASE WHEN one.outcome <> 'done' THEN one.outcome WHEN one.id = ANY(buried) THEN 'buried' ELSE 'deferred' END,
        one.current_owner, one.current_epoch, one.current_state
        FROM {outcomes}(owner, ids, epochs, NULL, false, solehold_done || buried) AS one;
END
$solehold$;

CREATE OR REPLACE FUNCTION {fail}(
    owner text, id {id_type}, epoch bigint, reason text, pause_seconds double precision,
    attempts_max integer DEFAULT {attempts_max}) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    result record;
BEGIN
    SELECT * INTO STRICT result
        FROM {fail_all}(owner, ARRAY[id], ARRAY[epoch], ARRAY[reason], ARRAY[pause_seconds], attempts_max);
    PERFORM {unless_lost}(result);
    RETURN result.outcome;
END
$solehold$;
