//! Jobs and stages, from rows and to rows.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};
use solehold_sql::Error;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use crate::model::job::{Job, JobState, Labels, Stage, StageState};
use crate::store::Store;

#[derive(Debug, Clone)]
pub(crate) struct JobRow {
    pub job: Job,
    pub partition: i32,
}

const JOB: &str =
    "job_id, partition, key, labels, input, pipeline, state, reason, revision, created_ms, finished_ms";
const STAGE: &str = "job_id, place, state, attempt, failures, progress, result, reason, queued_ms, started_ms, \
                     finished_ms, deadline_ms";

impl Store {
    /// Those of these jobs that exist.
    pub(crate) async fn load(&self, client: &Client, ids: &[&str]) -> Result<Vec<JobRow>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let jobs = format!("SELECT {JOB} FROM {} WHERE job_id = ANY($1)", self.table("jobs"));
        let jobs = client.query_typed(&jobs, &[(&ids, Type::TEXT_ARRAY)]).await?;
        self.with_stages(client, &jobs).await
    }

    /// These jobs with their stages, in the same order.
    pub(crate) async fn with_stages(&self, client: &Client, jobs: &[Row]) -> Result<Vec<JobRow>, Error> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<&str> = jobs.iter().map(|row| row.get(0)).collect();
        let stages = format!(
            "SELECT {STAGE} FROM {} WHERE job_id = ANY($1) ORDER BY job_id, place",
            self.table("stages")
        );
        let rows = client.query_typed(&stages, &[(&found, Type::TEXT_ARRAY)]).await?;
        let mut stages: HashMap<&str, Vec<Stage>> = HashMap::new();
        for row in &rows {
            stages.entry(row.get(0)).or_default().push(stage_of(row)?);
        }
        let mut kept = Vec::with_capacity(jobs.len());
        for row in jobs {
            let pipeline = self.pipeline(client, row.get(5)).await?;
            let stages = stages.remove(row.get::<_, &str>(0)).unwrap_or_default();
            if stages.len() != pipeline.stages().len() {
                return Err(Error::Effect(format!("job {} has missing stages", row.get::<_, &str>(0))));
            }
            let job = Job {
                id: row.get(0),
                key: row.get(2),
                labels: labels_of(row.try_get(3)?)?,
                input: Arc::new(row.try_get(4)?),
                pipeline,
                state: job_state(row.get(6))?,
                reason: row.get(7),
                revision: row.get(8),
                created_ms: row.get(9),
                finished_ms: row.get(10),
                stages,
            };
            kept.push(JobRow { job, partition: row.get(1) });
        }
        Ok(kept)
    }

    pub(crate) async fn insert_jobs(
        &self,
        client: &Client,
        partition: i32,
        jobs: &[&Job],
        digests: &[String],
    ) -> Result<(), Error> {
        let text = |of: fn(&Job) -> &str| jobs.iter().map(|job| of(job)).collect::<Vec<&str>>();
        let number = |of: fn(&Job) -> Option<i64>| jobs.iter().map(|job| of(job)).collect::<Vec<_>>();
        let ids = text(|job| &job.id);
        let states = text(|job| job.state.name());
        let keys = text(|job| &job.key);
        let labels: Vec<Value> = jobs.iter().map(|job| json!(job.labels)).collect();
        let inputs: Vec<&Value> = jobs.iter().map(|job| &*job.input).collect();
        let reasons: Vec<Option<&str>> = jobs.iter().map(|job| job.reason.as_deref()).collect();
        let revisions = number(|job| Some(job.revision));
        let created = number(|job| Some(job.created_ms));
        let finished = number(|job| job.finished_ms);
        let insert = format!(
            "INSERT INTO {} ({JOB}) SELECT id, $1, key, labels, input, digest, state, reason, revision, \
             created_ms, finished_ms FROM unnest($2::text[], $3::text[], $4::json[], $5::json[], $6::text[], $7::text[], \
             $8::text[], $9::bigint[], $10::bigint[], $11::bigint[]) AS given (id, key, labels, input, digest, \
             state, reason, revision, created_ms, finished_ms)",
            self.table("jobs")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
            (&partition, Type::INT4),
            (&ids, Type::TEXT_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&labels, Type::JSON_ARRAY),
            (&inputs, Type::JSON_ARRAY),
            (&digests, Type::TEXT_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&revisions, Type::INT8_ARRAY),
            (&created, Type::INT8_ARRAY),
            (&finished, Type::INT8_ARRAY),
        ];
        client.execute_typed(&insert, &parameters).await?;
        Ok(())
    }

    pub(crate) async fn update_jobs(&self, client: &Client, jobs: &[&Job]) -> Result<(), Error> {
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
        let states: Vec<&str> = jobs.iter().map(|job| job.state.name()).collect();
        let reasons: Vec<Option<&str>> = jobs.iter().map(|job| job.reason.as_deref()).collect();
        let revisions: Vec<i64> = jobs.iter().map(|job| job.revision).collect();
        let finished: Vec<Option<i64>> = jobs.iter().map(|job| job.finished_ms).collect();
        let update = format!(
            "UPDATE {} AS kept SET state = given.state, reason = given.reason, revision = given.revision, \
             finished_ms = given.finished_ms \
             FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]) \
             AS given (id, state, reason, revision, finished_ms) WHERE kept.job_id = given.id",
            self.table("jobs")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&ids, Type::TEXT_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&revisions, Type::INT8_ARRAY),
            (&finished, Type::INT8_ARRAY),
        ];
        client.execute_typed(&update, &parameters).await?;
        Ok(())
    }

    /// Inserts or updates stages.
    pub(crate) async fn write_stages(
        &self,
        client: &Client,
        partition: i32,
        stages: &[(&Job, usize)],
    ) -> Result<(), Error> {
        let each = || stages.iter().map(|(job, at)| (*job, *at, &job.stages[*at]));
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let time = |of: fn(&Stage) -> Option<i64>| each().map(|(.., stage)| of(stage)).collect::<Vec<_>>();
        let jobs: Vec<&str> = each().map(|(job, ..)| job.id.as_str()).collect();
        let places: Vec<i32> = each().map(|(_, at, _)| i32::try_from(at).unwrap_or(i32::MAX)).collect();
        let names: Vec<&str> = each().map(|(job, at, _)| job.pipeline.stages()[at].name.as_str()).collect();
        let states: Vec<&str> = each().map(|(.., stage)| stage.state.name()).collect();
        let attempts: Vec<i32> = each().map(|(.., stage)| number(stage.attempt)).collect();
        let failures: Vec<i32> = each().map(|(.., stage)| number(stage.failures)).collect();
        let progress: Vec<f64> = each().map(|(.., stage)| stage.progress).collect();
        let results: Vec<Option<&Value>> = each().map(|(.., stage)| stage.result.as_deref()).collect();
        let reasons: Vec<Option<&str>> = each().map(|(.., stage)| stage.reason.as_deref()).collect();
        let queued = time(|stage| stage.queued_ms);
        let started = time(|stage| stage.started_ms);
        let finished = time(|stage| stage.finished_ms);
        let deadlines = time(|stage| stage.deadline_ms);
        let write = format!(
            "INSERT INTO {} AS kept (job_id, place, stage, partition, state, attempt, failures, progress, result, reason, \
             queued_ms, started_ms, finished_ms, deadline_ms) \
             SELECT job, place, stage, $1, state, attempt, failures, progress, result, reason, queued, started, finished, \
             deadline FROM unnest($2::text[], $3::integer[], $4::text[], $5::text[], $6::integer[], $7::integer[], \
             $8::float8[], $9::json[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[]) \
             AS given (job, place, stage, state, attempt, failures, progress, result, reason, queued, started, finished, \
             deadline) ON CONFLICT (job_id, place) DO UPDATE SET state = EXCLUDED.state, attempt = EXCLUDED.attempt, \
             failures = EXCLUDED.failures, progress = EXCLUDED.progress, result = EXCLUDED.result, \
             reason = EXCLUDED.reason, queued_ms = EXCLUDED.queued_ms, started_ms = EXCLUDED.started_ms, \
             finished_ms = EXCLUDED.finished_ms, deadline_ms = EXCLUDED.deadline_ms",
            self.table("stages")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 14] = [
            (&partition, Type::INT4),
            (&jobs, Type::TEXT_ARRAY),
            (&places, Type::INT4_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&failures, Type::INT4_ARRAY),
            (&progress, Type::FLOAT8_ARRAY),
            (&results, Type::JSON_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&queued, Type::INT8_ARRAY),
            (&started, Type::INT8_ARRAY),
            (&finished, Type::INT8_ARRAY),
            (&deadlines, Type::INT8_ARRAY),
        ];
        client.execute_typed(&write, &parameters).await?;
        Ok(())
    }
}

fn stage_of(row: &Row) -> Result<Stage, Error> {
    let number = |at: usize| row.get::<_, i32>(at).unsigned_abs();
    Ok(Stage {
        state: stage_state(row.get(2))?,
        attempt: number(3),
        failures: number(4),
        progress: row.get(5),
        result: row.try_get::<_, Option<Value>>(6)?.map(Arc::new),
        reason: row.get(7),
        queued_ms: row.get(8),
        started_ms: row.get(9),
        finished_ms: row.get(10),
        deadline_ms: row.get(11),
    })
}

pub(crate) fn labels_of(labels: Value) -> Result<Labels, Error> {
    serde_json::from_value(labels).map_err(|error| Error::Effect(format!("the labels of a job: {error}")))
}

pub(crate) fn job_state(name: &str) -> Result<JobState, Error> {
    let state = JobState::ALL.into_iter().find(|state| state.name() == name);
    state.ok_or_else(|| Error::Effect(format!("unknown state {name:?} of a job")))
}

fn stage_state(name: &str) -> Result<StageState, Error> {
    let state = StageState::ALL.into_iter().find(|state| state.name() == name);
    state.ok_or_else(|| Error::Effect(format!("unknown state {name:?} of a stage")))
}
