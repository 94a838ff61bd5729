CREATE SCHEMA IF NOT EXISTS pipeline;

-- The high-water mark of each camera: the newest token that has written, and the last frame.
CREATE TABLE IF NOT EXISTS pipeline.marks (
    camera   text PRIMARY KEY,
    token    bigint NOT NULL DEFAULT 0,
    frame    bigint NOT NULL DEFAULT 0,
    fenced   bigint NOT NULL DEFAULT 0,
    repeated bigint NOT NULL DEFAULT 0,
    gaps     bigint NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS pipeline.frames (
    camera         text NOT NULL,
    frame          bigint NOT NULL,
    token          bigint NOT NULL,
    worker         text NOT NULL,
    config_version text,
    zone_version   text,
    written_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (camera, frame)
);

-- Writes a frame and moves the mark, in one transaction. An older token is fenced off. A frame that is there already is
-- not written again, and one that skips some is counted.
CREATE OR REPLACE FUNCTION pipeline.write(
    the_camera text, the_token bigint, the_frame bigint, the_worker text, the_config text, the_zones text,
    OUT outcome text, OUT newest_token bigint, OUT last_frame bigint
) LANGUAGE plpgsql AS $$
DECLARE
    mark pipeline.marks;
BEGIN
    SELECT * INTO mark FROM pipeline.marks WHERE camera = the_camera FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO pipeline.marks (camera) VALUES (the_camera) ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT mark FROM pipeline.marks WHERE camera = the_camera FOR UPDATE;
    END IF;
    IF the_token < mark.token THEN
        outcome := 'fenced';
        UPDATE pipeline.marks SET fenced = fenced + 1 WHERE camera = the_camera;
    ELSIF the_frame <= mark.frame THEN
        outcome := 'repeated';
        UPDATE pipeline.marks SET token = the_token, repeated = repeated + 1 WHERE camera = the_camera;
        mark.token := the_token;
    ELSE
        outcome := 'written';
        INSERT INTO pipeline.frames (camera, frame, token, worker, config_version, zone_version)
            VALUES (the_camera, the_frame, the_token, the_worker, the_config, the_zones);
        UPDATE pipeline.marks
            SET token = the_token, frame = the_frame, gaps = gaps + (the_frame - mark.frame - 1)
            WHERE camera = the_camera;
        mark.token := the_token;
        mark.frame := the_frame;
    END IF;
    newest_token := mark.token;
    last_frame := mark.frame;
END $$;
