//! Jobs of an orchestrator, read for the dashboard. Nothing can be changed here: that is what the orchestrator's own
//! address is for.
//!
//! An orchestrator knows no tenants of this server, and its labels mean whatever its commands say. So its jobs are for
//! keys that may see everything.

use serde::{Deserialize, de::DeserializeOwned};
use solehold_api::{
    field::FieldError,
    orchestrator::{
        OrchestratorJobDetails, OrchestratorJobList, OrchestratorJobState, OrchestratorLetterList,
    },
    page::{self, PageCursor, unknown_cursor},
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_core::limits::NAME_BYTES_MAX;

use crate::{
    http::{ApiError, Caller, Context, Json, NamePath, Params, Reply, role},
    orchestrator::OrchestratorClient,
};

routes!["orchestrator": list_orchestrator_jobs, get_orchestrator_job, list_orchestrator_letters];

/// A filter that is misspelt must not list everything.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct JobsQuery {
    /// Only jobs in this state.
    #[param(inline)]
    state: Option<OrchestratorJobState>,
    /// Where to begin: the `next` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<PageCursor>,
    /// The largest number of items to return.
    limit: Option<i64>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct LettersQuery {
    /// Where to begin: the `next` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Option<PageCursor>,
    /// The largest number of items to return.
    limit: Option<i64>,
}

/// Lists the jobs of the orchestrator that this server was started with (`serve --orchestrator`), in the order of their
/// ids. They belong to no tenant: a key that is limited to a tenant or to some resources is refused.
#[utoipa::path(
    get, path = paths::ORCHESTRATOR_JOBS, params(JobsQuery),
    responses(
        (status = 200, description = "A page of jobs", body = OrchestratorJobList),
        (status = 404, description = "This server was started without `--orchestrator`"),
        (status = 502, description = "The orchestrator does not answer, refuses the key of this server, or answers with something else than jobs"),
    )
)]
async fn list_orchestrator_jobs(
    caller: Caller<role::StoreReader>,
    Params(query): Params<JobsQuery>,
) -> Reply<OrchestratorJobList> {
    let mut parameters = page_of(query.cursor, query.limit)?;
    parameters.extend(query.state.map(|state| ("state", state.name().to_owned())));
    let found: Page<_> = asked(caller.context())?.get("/jobs".to_owned(), parameters).await?;
    Ok(Json(OrchestratorJobList { jobs: found.items, next: found.next.map(after) }))
}

/// Shows a job of the orchestrator with its stages.
#[utoipa::path(
    get, path = paths::ORCHESTRATOR_JOB, params(("id" = String, Path, description = "The id of the job; a slash within it is `%2F`")),
    responses(
        (status = 200, description = "The job", body = OrchestratorJobDetails),
        (status = 404, description = "There is no such job, or this server was started without `--orchestrator`"),
        (status = 502, description = "The orchestrator does not answer, refuses the key of this server, or answers with something else than a job"),
    )
)]
async fn get_orchestrator_job(
    caller: Caller<role::StoreReader>,
    NamePath(id): NamePath<String>,
) -> Reply<OrchestratorJobDetails> {
    let orchestrator = asked(caller.context())?;
    let path = format!("/jobs/{}", paths::segment(checked(&id)?));
    Ok(Json(orchestrator.get(path, Vec::new()).await?))
}

/// Lists the dead letters of the orchestrator that nobody has decided on, without their payloads.
#[utoipa::path(
    get, path = paths::ORCHESTRATOR_LETTERS, params(LettersQuery),
    responses(
        (status = 200, description = "A page of dead letters", body = OrchestratorLetterList),
        (status = 404, description = "This server was started without `--orchestrator`"),
        (status = 502, description = "The orchestrator does not answer, refuses the key of this server, or answers with something else than letters"),
    )
)]
async fn list_orchestrator_letters(
    caller: Caller<role::StoreReader>,
    Params(query): Params<LettersQuery>,
) -> Reply<OrchestratorLetterList> {
    let mut parameters = page_of(query.cursor, query.limit)?;
    // A payload has up to 1 MiB.
    parameters.push(("payload", "false".to_owned()));
    let found: Page<_> = asked(caller.context())?.get("/letters".to_owned(), parameters).await?;
    Ok(Json(OrchestratorLetterList { letters: found.items, next: found.next.map(after) }))
}

/// A page as the orchestrator sends it: `next` is the id of its last item.
#[derive(Debug, Deserialize)]
struct Page<T: DeserializeOwned> {
    #[serde(alias = "jobs", alias = "letters", bound = "T: DeserializeOwned")]
    items: Vec<T>,
    next: Option<String>,
}

fn asked(context: &Context) -> Result<&OrchestratorClient, ApiError> {
    context.orchestrator.as_ref().ok_or_else(|| {
        let detail = "this server was started without --orchestrator, so it knows of no jobs";
        Problem::new(ErrorCode::NotFound, detail).into()
    })
}

fn page_of(
    cursor: Option<PageCursor>,
    limit: Option<i64>,
) -> Result<Vec<(&'static str, String)>, FieldError> {
    let mut parameters = vec![("limit", page::size(limit)?.to_string())];
    if let Some(PageCursor(parts)) = cursor {
        let [id] = <[String; 1]>::try_from(parts).map_err(|_| unknown_cursor())?;
        checked(&id).map_err(|_| unknown_cursor())?;
        parameters.push(("after", id));
    }
    Ok(parameters)
}

fn after(id: String) -> PageCursor {
    PageCursor(vec![id])
}

/// The id of a job that can be in a path. URL parsers drop `.` and `..` however they are written, and would ask for
/// something else.
fn checked(id: &str) -> Result<&str, FieldError> {
    let is_usual = (1..=NAME_BYTES_MAX).contains(&id.len()) && ![".", ".."].contains(&id);
    if is_usual && !id.contains('\0') {
        return Ok(id);
    }
    Err(FieldError::new("id", format!("must have 1 to {NAME_BYTES_MAX} bytes, and be neither `.` nor `..`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_one_segment_of_the_path() {
        for id in ["job-17", "a/b", "ü", "...", "a?b=c#d", "%2e%2e"] {
            assert_eq!(checked(id), Ok(id));
        }
        assert_eq!(paths::segment("a/../b?c"), "a%2F..%2Fb%3Fc");
        for id in ["", ".", "..", "a\0b", &"x".repeat(256)] {
            assert!(checked(id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn a_cursor_is_an_id() {
        let after = |text: &str| page_of(Some(text.parse().expect("a cursor")), Some(5));
        let wanted = vec![("limit", "5".to_owned()), ("after", "a/b".to_owned())];
        assert_eq!(after("a%2Fb"), Ok(wanted));
        assert!(after("a/b").is_err() && page_of(None, Some(0)).is_err());
    }
}
