-- The fence as `solehold_sql::fenced` made it first: a row trigger that fires before the write, and none for TRUNCATE.
CREATE TABLE IF NOT EXISTS "fences" (resource text PRIMARY KEY, token bigint NOT NULL, session uuid);
CREATE OR REPLACE FUNCTION "fences_admit"() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    shown text := current_setting('solehold.token', true);
    rows jsonb[] := CASE TG_OP WHEN 'INSERT' THEN ARRAY[to_jsonb(NEW)] WHEN 'DELETE' THEN ARRAY[to_jsonb(OLD)]
        ELSE ARRAY[to_jsonb(OLD), to_jsonb(NEW)] END;
    written jsonb;
    guarded text;
    newest bigint;
BEGIN
    IF coalesce(shown, '') = '' THEN
        RAISE EXCEPTION '% is fenced, and this transaction shows no token', TG_TABLE_NAME
            USING ERRCODE = 'SH428', HINT = 'SET LOCAL solehold.token = ''42''';
    END IF;
    FOREACH written IN ARRAY rows LOOP
        guarded := TG_ARGV[0] || '/' || (written ->> TG_ARGV[1]);
        INSERT INTO "fences" AS kept (resource, token) VALUES (guarded, shown::bigint)
            ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE kept.token <= excluded.token;
        IF NOT FOUND THEN
            SELECT token INTO newest FROM "fences" WHERE resource = guarded;
            RAISE EXCEPTION 'token % of % is stale, the newest is %', shown, guarded, newest
                USING ERRCODE = 'SH412';
        END IF;
    END LOOP;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $body$;
CREATE OR REPLACE TRIGGER solehold_fence BEFORE INSERT OR UPDATE OR DELETE ON "tracks" FOR EACH ROW EXECUTE FUNCTION "fences_admit"('scene', 'scene_id');
