//! Export and import of the whole store, as JSON lines.

use std::{io, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes, HttpBody},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use solehold_api::{
    admin::{ImportSummary, RetireStore},
    field,
    limits::EXPORT_LINE_BYTES_MAX,
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_engine::{
    EngineError,
    store::{Import, ImportReader, Row, StoreError},
};

use crate::http::{self, ApiError, Caller, Json, Reply, body_late, role};

/// Largest import in bytes: its rows are held in memory until it is found whole.
const IMPORT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

routes!["administration": export, import, retire];

/// Exports everything that the store keeps, as of one moment, one row per line.
///
/// The first line is a header and the last one marks the end: an import refuses an export that was cut off.
#[utoipa::path(
    get, path = paths::EXPORT,
    responses((status = 200, description = "One row per line, as JSON", body = String, content_type = "application/jsonl"))
)]
async fn export(caller: Caller<role::StoreAdmin>) -> Result<Response, ApiError> {
    let mut rows = caller.context().engine().export()?;
    // What is wrong at the beginning is a problem document; afterwards the body breaks off.
    let first = rows.next().await.transpose().map_err(EngineError::from)?;
    let first = stream::iter(first.map(|rows| lines(&rows)));
    let rest = stream::unfold(rows, async |mut rows| Some((rows.next().await?, rows)));
    let rest = rest.map(|rows| rows.map_err(io::Error::other).and_then(|rows| lines(&rows)));
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(first.chain(rest))).into_response())
}

fn lines(rows: &[Row]) -> io::Result<Bytes> {
    let mut piece = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut piece, row)?;
        piece.push(b'\n');
    }
    Ok(piece.into())
}

/// Retires the store: from now on it refuses everything but exports, and says where its data went. Export it
/// afterwards, so that nothing is missing; an import then carries over active leases with their tokens.
#[utoipa::path(
    post, path = paths::RETIRE, request_body = RetireStore,
    responses((status = 204, description = "It was retired"))
)]
async fn retire(
    caller: Caller<role::StoreAdmin>,
    http::Body(retire): http::Body<RetireStore>,
) -> Result<StatusCode, ApiError> {
    let to = field::name("to", &retire.to)?;
    caller.context().operator().retire(to.as_str()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Imports an export into a store that has never been used. Tokens continue above those of the export.
#[utoipa::path(
    post, path = paths::IMPORT,
    request_body(content = String, content_type = "application/jsonl", description = "The lines of an export"),
    responses((status = 200, description = "What was imported", body = ImportSummary))
)]
async fn import(caller: Caller<role::StoreAdmin>, body: Body) -> Reply<ImportSummary> {
    let context = caller.context();
    Lines::default().bound("import_bytes", body.size_hint().lower(), IMPORT_BYTES_MAX)?;
    let import = read_rows(body.into_data_stream(), context.limits.request_timeout).await?;
    let rows = import.rows;
    let begins = context.operator().import(import).await.map_err(refused)?;
    context.refresh().await?;
    Ok(Json(ImportSummary { rows, revision: begins.cursor.revision.0, barred_ms: begins.barred_ms }))
}

/// A store that is in use, or an export that cannot be used, is not the server's fault.
fn refused(error: EngineError) -> ApiError {
    match error {
        EngineError::Store(error @ (StoreError::NotEmpty | StoreError::Unusable(_))) => {
            Problem::new(ErrorCode::Conflict, error.to_string()).into()
        }
        other => other.into(),
    }
}

/// Reads lines as they come in, none of them later than `timeout` after what came before.
async fn read_rows(mut body: BodyDataStream, timeout: Duration) -> Result<Import, ApiError> {
    let mut lines = Lines::default();
    let late = |_| body_late(timeout);
    while let Some(piece) = tokio::time::timeout(timeout, body.next()).await.map_err(late)? {
        let piece =
            piece.map_err(|e| Problem::new(ErrorCode::BadRequest, format!("the body ended early: {e}")))?;
        lines.take(&piece)?;
    }
    lines.end_line()?;
    lines.rows.finish().map_err(|error| refused(error.into()))
}

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    rows: ImportReader,
    number: u64,
    bytes: u64,
}

impl Lines {
    fn take(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.bytes += piece.len() as u64;
        self.bound("import_bytes", self.bytes, IMPORT_BYTES_MAX)?;
        let mut parts = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            let length = self.line.len() + part.len();
            self.bound("export_line_bytes", length as u64, EXPORT_LINE_BYTES_MAX as u64)?;
            self.line.extend_from_slice(part);
            if parts.peek().is_some() {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), ApiError> {
        self.number += 1;
        let line = std::mem::take(&mut self.line);
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let row = serde_json::from_slice(&line);
        let wrong = |e| {
            Problem::new(
                ErrorCode::InvalidJson,
                format!("line {} is not a row of an export: {e}", self.number),
            )
        };
        self.rows.take(row.map_err(wrong)?).map_err(|error| refused(error.into()))
    }

    fn bound(&self, name: &str, bytes: u64, most: u64) -> Result<(), ApiError> {
        if bytes <= most {
            return Ok(());
        }
        let detail = format!("line {} has more than {most} bytes", self.number + 1);
        Err(Problem::new(ErrorCode::PayloadTooLarge, detail).limit(name, most).into())
    }
}
