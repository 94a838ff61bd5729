-- The newest token of each resource that was written, and the session that it was given to, where that is known.
CREATE TABLE IF NOT EXISTS {marks} (resource text PRIMARY KEY, token bigint NOT NULL, session uuid);

-- Raises the mark of a resource, such as 'scene/lobby', or fails: with SQLSTATE {STALE} if a newer token was used, or
-- this one by another session. The row of the mark stays locked until the transaction ends, so that of two transactions
-- with different tokens the one with the higher token commits last.
CREATE OR REPLACE FUNCTION {admit}(resource text, token bigint, session uuid DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    newest bigint;
    holder uuid;
BEGIN
    IF coalesce($1, '') = '' OR coalesce($2, 0) <= 0 THEN
        RAISE EXCEPTION 'a resource has a name and a token is at least 1, but % and % were given',
            coalesce(quote_literal($1), 'no resource'), coalesce($2::text, 'no token')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- A mark that is where it should be is only locked: a transaction that writes many rows of a resource would
    -- otherwise leave as many versions of its mark behind, and look through all of them for each row.
    SELECT kept.token, kept.session INTO newest, holder FROM {marks} AS kept WHERE kept.resource = $1
        FOR NO KEY UPDATE;
    IF newest = $2 AND ($3 IS NULL OR $3 = holder) THEN
        RETURN;
    END IF;
    INSERT INTO {marks} AS kept (resource, token, session) VALUES ($1, $2, $3)
        ON CONFLICT (resource) DO UPDATE SET token = excluded.token,
            session = CASE WHEN kept.token = excluded.token THEN coalesce(kept.session, excluded.session)
                ELSE excluded.session END
        WHERE kept.token < excluded.token
            OR kept.token = excluded.token AND coalesce(kept.session = excluded.session, true);
    IF NOT FOUND THEN
        SELECT kept.token INTO newest FROM {marks} AS kept WHERE kept.resource = $1;
        RAISE EXCEPTION 'token % of % is stale, the newest is %', $2, $1, newest USING ERRCODE = '{STALE}';
    END IF;
END $body$;

-- The trigger of a guarded table: raises the mark of every resource whose rows a statement writes, to the token that
-- the transaction shows. Its arguments are the kind of the resources and the column that has the rest of their names.
CREATE OR REPLACE FUNCTION {admit}() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    shown text := current_setting('solehold.token', true);
    keys text[];
    key text;
BEGIN
    IF coalesce(shown, '') = '' THEN
        RAISE EXCEPTION '% is fenced, and this transaction shows no token', TG_TABLE_NAME
            USING ERRCODE = '{NO_TOKEN}', HINT = 'SET LOCAL solehold.token = ''42''';
    END IF;
    CASE TG_OP
        WHEN 'INSERT' THEN keys := ARRAY[to_jsonb(NEW) ->> TG_ARGV[1]];
        WHEN 'DELETE' THEN keys := ARRAY[to_jsonb(OLD) ->> TG_ARGV[1]];
        WHEN 'UPDATE' THEN
            keys := ARRAY[to_jsonb(OLD) ->> TG_ARGV[1]];
            key := to_jsonb(NEW) ->> TG_ARGV[1];
            IF key IS DISTINCT FROM keys[1] THEN
                keys := array_append(keys, key);
            END IF;
        WHEN 'TRUNCATE' THEN
            -- TRUNCATE also removes rows that came after the snapshot of the transaction. Only here every statement has
            -- a snapshot of its own, which is taken when the table is locked already.
            IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
                RAISE EXCEPTION '% is fenced: TRUNCATE it in a transaction that is read committed', TG_TABLE_NAME
                    USING ERRCODE = 'feature_not_supported',
                        HINT = 'use DELETE, or SET TRANSACTION ISOLATION LEVEL READ COMMITTED';
            END IF;
            EXECUTE format('SELECT array_agg(DISTINCT to_jsonb(%I) #>> ''{}'') FROM %I.%I', TG_ARGV[1], TG_TABLE_SCHEMA,
                TG_TABLE_NAME) INTO keys;
    END CASE;
    FOREACH key IN ARRAY coalesce(keys, '{}') LOOP
        IF key IS NULL THEN
            RAISE EXCEPTION '% of % is null, so the row belongs to no resource', TG_ARGV[1], TG_TABLE_NAME
                USING ERRCODE = 'not_null_violation';
        END IF;
        PERFORM {admit}(TG_ARGV[0] || '/' || key, shown::bigint);
    END LOOP;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $body$;
