-- For as long as workers run that claim by SQL of their own, with an owner and an end of the lease but without an
-- epoch. It changes only what such workers do: their claims get an epoch, and what the database's clock forbids changes
-- no row.
CREATE OR REPLACE FUNCTION {guard}() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER {search_path} AS $solehold$
DECLARE
    is_live boolean := OLD.{owner_column} IS NOT NULL AND COALESCE(OLD.{until_column} > clock_timestamp(), false);
BEGIN
    IF NEW.{epoch_column} IS DISTINCT FROM OLD.{epoch_column}
        OR (NEW.{owner_column}, NEW.{until_column}) IS NOT DISTINCT FROM (OLD.{owner_column}, OLD.{until_column}) THEN
        RETURN NEW;
    END IF;
    -- A claim without an epoch: the lease is another's, or a new one.
    IF NEW.{owner_column} IS NOT NULL AND (NOT is_live OR NEW.{owner_column} <> OLD.{owner_column}) THEN
        IF is_live{or_buried} THEN
            RETURN NULL;
        END IF;
        NEW.{epoch_column} := COALESCE(OLD.{epoch_column}, 0) + 1;
    -- The end of a claim that had run out: its worker does not know what happened since.
    ELSIF NEW.{owner_column} IS NULL AND OLD.{owner_column} IS NOT NULL AND NOT is_live{and_moved} THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$solehold$;
DROP TRIGGER IF EXISTS {guard_trigger} ON {table};
CREATE TRIGGER {guard_trigger} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {guard}();
