-- Claims on the rows of {name}, for programs in any language; made by `solehold sql functions`.
-- Times are judged by the clock of this database. The functions have the rights of their caller.

-- Claims up to max_rows rows. A claim begins to look where the last one of this connection ended, and looks at
-- everything whenever that is cheap. The floor is a setting of the connection, and losing it costs one full pass.
CREATE OR REPLACE FUNCTION {claim}(owner text, max_rows integer, lease_seconds double precision)
RETURNS TABLE (
    claim_id {id_type}, claim_epoch bigint, claim_attempts integer, claim_state text,
    claimed_at timestamptz{payload_columns})
LANGUAGE plpgsql VOLATILE SECURITY INVOKER ROWS 100 {planned} AS $solehold$
#variable_conflict use_column
DECLARE
    solehold_began timestamptz := clock_timestamp();
    solehold_floor jsonb := NULLIF(current_setting('{setting}', true), '')::jsonb;
    solehold_next_full timestamptz := (solehold_floor->>'next_full')::timestamptz;
    -- Fresh rows and rows that are due again take turns in coming first.
    solehold_due_first boolean := NOT COALESCE((solehold_floor->>'due_first')::boolean, false);
    solehold_due timestamptz := (solehold_floor->>'due')::timestamptz;
    solehold_full_passes bigint := COALESCE((solehold_floor->>'full_passes')::bigint, 0);
    solehold_limit bigint := max_rows;
    solehold_owner text := owner;
    solehold_ms double precision := lease_seconds * 1000;
    solehold_is_full boolean;
    solehold_fresh_rows bigint;
    solehold_due_rows bigint;
    solehold_due_room bigint;
    solehold_last_due timestamptz;
    solehold_ahead boolean;
{key_variables}
BEGIN
    PERFORM {check_owner}(owner);
    IF (max_rows BETWEEN 1 AND {batch_rows_max}) IS NOT TRUE THEN
        RAISE EXCEPTION 'invalid max_rows %: use 1 to {batch_rows_max}', max_rows
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {check_seconds}('lease_seconds', ARRAY[lease_seconds], {lease_min}, {lease_max});
    -- A time that is further away than any pause was written before the clock was set back.
    solehold_is_full := ({floor_key}) IS NULL OR COALESCE(solehold_began NOT BETWEEN
        solehold_next_full - interval '{full_pass_pause_max} seconds' AND solehold_next_full, true);
    IF solehold_is_full AND solehold_due_first THEN
        FOR {claimed} IN {all_due_first} LOOP
            EXIT WHEN claim_epoch IS NULL;
            RETURN NEXT;
        END LOOP;
    ELSIF solehold_is_full THEN
        FOR {claimed} IN {all_fresh_first} LOOP
            EXIT WHEN claim_epoch IS NULL;
            RETURN NEXT;
        END LOOP;
    ELSIF solehold_due_first THEN
        FOR {claimed} IN {floor_due_first} LOOP
            EXIT WHEN claim_epoch IS NULL;
            RETURN NEXT;
        END LOOP;
    ELSE
        FOR {claimed} IN {floor_fresh_first} LOOP
            EXIT WHEN claim_epoch IS NULL;
            RETURN NEXT;
        END LOOP;
    END IF;
    solehold_ahead := NOT solehold_is_full OR COALESCE(({found_key}) > ({floor_key}), true);
    IF solehold_is_full THEN
        solehold_full_passes := solehold_full_passes + 1;
        solehold_next_full := clock_timestamp()
            + LEAST((clock_timestamp() - solehold_began) * {full_pass_share}, interval '{full_pass_pause_max} seconds');
    END IF;
    -- What a full pass found below the floor is the last there was, unless there may be more.
    IF ({found_key}) IS NOT NULL AND (solehold_ahead OR solehold_fresh_rows =
        max_rows - CASE WHEN solehold_due_first THEN solehold_due_rows ELSE 0 END) THEN
{move_floor}
    END IF;
    solehold_due_room := max_rows - CASE WHEN solehold_due_first THEN 0 ELSE solehold_fresh_rows END;
    IF solehold_due_room > 0 THEN
        solehold_due := CASE WHEN solehold_due_rows < solehold_due_room THEN claimed_at ELSE solehold_last_due END;
    END IF;
    PERFORM set_config('{setting}', jsonb_build_object(
        'fresh', CASE WHEN ({floor_key}) IS NOT NULL THEN jsonb_build_array({floor_key}) END, 'due', solehold_due,
        'due_first', solehold_due_first, 'next_full', solehold_next_full,
        'full_passes', solehold_full_passes)::text, false);
END
$solehold$;
