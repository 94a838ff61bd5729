//! What the sink says: which frames came when, under which token.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use crate::{events::Change, world::World};

/// What did not get past the sink's marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Frames under an old token.
    pub fenced: i64,
    /// Frames that were there already.
    pub repeated: i64,
}

impl World {
    pub async fn refused(&self) -> Result<Refused> {
        let sql =
            "SELECT coalesce(sum(fenced), 0)::bigint, coalesce(sum(repeated), 0)::bigint FROM pipeline.marks";
        let row = self.database.query_one(sql, &[]).await?;
        Ok(Refused { fenced: row.get(0), repeated: row.get(1) })
    }

    /// How many frames of each camera were written after a time.
    pub async fn frames_since(&self, time: f64) -> Result<BTreeMap<String, i64>> {
        let sql = "SELECT camera, count(*) FROM pipeline.frames WHERE written_at > to_timestamp($1) GROUP BY camera";
        let rows = self.database.query(sql, &[&time]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Milliseconds from a time to the first frame of each camera under a token above the given one.
    pub async fn first_frame_after(&self, camera: &str, token: i64, time: f64) -> Result<f64> {
        let sql = "SELECT (extract(epoch FROM min(written_at)) * 1000)::float8 FROM pipeline.frames
                   WHERE camera = $1 AND token > $2";
        let first: Option<f64> = self.database.query_one(sql, &[&camera, &token]).await?.get(0);
        Ok(first.unwrap_or(f64::INFINITY) - time * 1_000.0)
    }

    /// The longest pause between two frames of each camera after a time, in milliseconds.
    pub async fn pauses_since(&self, time: f64) -> Result<BTreeMap<String, f64>> {
        let sql = "SELECT camera, (extract(epoch FROM max(pause)) * 1000)::float8 FROM (
                     SELECT camera, written_at, written_at - lag(written_at) OVER (PARTITION BY camera ORDER BY frame)
                       AS pause FROM pipeline.frames) p
                   WHERE written_at > to_timestamp($1) AND pause IS NOT NULL GROUP BY camera";
        let rows = self.database.query(sql, &[&time]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// For each planned move, milliseconds from the old worker's last frame to the new worker's first.
    pub async fn move_pauses(&self, changes: &[Change]) -> Result<Vec<f64>> {
        let sql =
            "SELECT (extract(epoch FROM f.written_at - e.written_at) * 1000)::float8 FROM pipeline.frames f
                   JOIN pipeline.frames e ON e.camera = f.camera AND e.frame = f.frame - 1
                   WHERE f.camera = $1 AND f.token = $2 AND e.token < $2";
        let mut pauses = Vec::new();
        for change in changes.iter().filter(|change| change.is_planned) {
            let row = self.database.query_opt(sql, &[&change.camera, &change.token]).await?;
            pauses.extend(row.map(|row| row.get::<_, f64>(0)));
        }
        Ok(pauses)
    }

    /// The versions of the configuration by which a camera's last frame was processed.
    pub async fn versions(&self, camera: &str) -> Result<(Option<String>, Option<String>)> {
        let sql = "SELECT config_version, zone_version FROM pipeline.frames WHERE camera = $1
                   ORDER BY frame DESC LIMIT 1";
        let row = self.database.query_one(sql, &[&camera]).await?;
        Ok((row.get(0), row.get(1)))
    }

    /// Every camera's frames are all there, once each, and no token comes back after a newer one.
    pub async fn check_frames(&self) -> Result<i64> {
        let sql = "SELECT camera, count(*), min(frame), max(frame) FROM pipeline.frames GROUP BY camera";
        let mut total = 0;
        let rows = self.database.query(sql, &[]).await?;
        ensure!(rows.len() == self.size.cameras, "{} cameras have frames", rows.len());
        for row in rows {
            let camera: String = row.get(0);
            let count: i64 = row.get(1);
            let first: i64 = row.get(2);
            let last: i64 = row.get(3);
            ensure!((first, last) == (1, count), "{camera}: {count} frames from {first} to {last}");
            total += count;
        }
        let sql = "SELECT count(*) FROM (SELECT token, worker, lag(token) OVER w AS before, lag(worker) OVER w AS by
                     FROM pipeline.frames WINDOW w AS (PARTITION BY camera ORDER BY frame)) f
                   WHERE token < before OR (token = before AND split_part(worker, '/', 1) <> split_part(by, '/', 1))";
        let odd: i64 = self.database.query_one(sql, &[]).await?.get(0);
        ensure!(odd == 0, "{odd} frames came under an older token, or under another runner's");
        let gaps: i64 =
            self.database.query_one("SELECT sum(gaps)::bigint FROM pipeline.marks", &[]).await?.get(0);
        ensure!(gaps == 0, "{gaps} frames are missing");
        Ok(total)
    }
}
