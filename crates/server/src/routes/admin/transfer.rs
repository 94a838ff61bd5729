//! Everything out as JSON lines, and in again.

use std::convert::Infallible;

use axum::{
    Json,
    body::{Body, BodyDataStream, Bytes},
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use solehold_api::{
    admin::{Imported, Retire},
    field,
    limits::EXPORT_LINE_BYTES_MAX,
    paths,
    problem::{ErrorCode, Problem},
};
use solehold_engine::{
    EngineError,
    store::{Row, StoreError},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Context,
    http::{self, Caller, Failure, Role},
};

/// Largest import in bytes: it is held in memory until it is found whole.
const IMPORT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Pieces of an export are about this large.
const PIECE_BYTES: usize = 64 * 1024;

pub fn routes() -> OpenApiRouter<Context> {
    OpenApiRouter::new().routes(routes!(export)).routes(routes!(import)).routes(routes!(retire))
}

/// Everything that the store keeps, a row a line, as it is at one moment.
///
/// The first line is a header and the last an end: an export that was cut off is refused by an import.
#[utoipa::path(
    get, path = paths::EXPORT, tag = "administration", operation_id = "export",
    responses((status = 200, description = "JSON lines", body = String, content_type = "application/jsonl"))
)]
async fn export(State(context): State<Context>, caller: Caller) -> Result<Response, Failure> {
    caller.must_be(Role::Admin)?;
    caller.must_be_unscoped()?;
    let rows = context.engine().export().await?.into_iter();
    let pieces = stream::iter(Pieces(rows).map(Ok::<_, Infallible>));
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], Body::from_stream(pieces)).into_response())
}

/// Rows as lines, several of them in a piece.
struct Pieces(std::vec::IntoIter<Row>);

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut piece = Vec::new();
        while piece.len() < PIECE_BYTES
            && let Some(row) = self.0.next()
        {
            // Keys are strings and numbers finite, so that a row is JSON; without its end nobody takes the export.
            serde_json::to_writer(&mut piece, &row).ok()?;
            piece.push(b'\n');
        }
        (!piece.is_empty()).then(|| piece.into())
    }
}

/// Retires the store: from now on it refuses everything but exports, and says where its data went. Export it afterwards,
/// so that nothing is missing; an import then carries over what was live, with its tokens.
#[utoipa::path(
    post, path = paths::RETIRE, tag = "administration", operation_id = "retire", request_body = Retire,
    responses((status = 204, description = "It is retired"))
)]
async fn retire(
    State(context): State<Context>,
    caller: Caller,
    http::Body(retire): http::Body<Retire>,
) -> Result<StatusCode, Failure> {
    caller.must_be(Role::Admin)?;
    caller.must_be_unscoped()?;
    let to = field::name("to", &retire.to)?;
    context.engine().retire(to.as_str()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes over an export, into a store that has never been used. Tokens go on from above.
#[utoipa::path(
    post, path = paths::IMPORT, tag = "administration", operation_id = "import",
    request_body(content = String, content_type = "application/jsonl", description = "The lines of an export"),
    responses((status = 200, description = "What was taken in", body = Imported))
)]
async fn import(
    State(context): State<Context>,
    caller: Caller,
    body: Body,
) -> Result<Json<Imported>, Failure> {
    caller.must_be(Role::Admin)?;
    caller.must_be_unscoped()?;
    let rows = read_rows(body.into_data_stream()).await?;
    let revision = rows.first().map_or(0, |row| match row {
        Row::Header(header) => header.revision.0,
        _ => 0,
    });
    let count = rows.len().saturating_sub(2) as u64;
    context.engine().import(rows).await.map_err(refused)?;
    context.refresh().await?;
    Ok(Json(Imported { rows: count, revision }))
}

/// A store that is in use, or an export that cannot be used, is not the server's fault.
fn refused(error: EngineError) -> Failure {
    match error {
        EngineError::Store(StoreError::Unusable(what)) => Problem::new(ErrorCode::Conflict, what).into(),
        other => other.into(),
    }
}

/// Reads lines as they come in.
async fn read_rows(mut body: BodyDataStream) -> Result<Vec<Row>, Failure> {
    let mut lines = Lines::default();
    while let Some(piece) = body.next().await {
        let piece =
            piece.map_err(|e| Problem::new(ErrorCode::BadRequest, format!("the body broke off: {e}")))?;
        lines.take(&piece)?;
    }
    lines.end_line()?;
    Ok(lines.rows)
}

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    rows: Vec<Row>,
    number: u64,
    bytes: usize,
}

impl Lines {
    fn take(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.bytes += piece.len();
        self.bound("import_bytes", self.bytes, IMPORT_BYTES_MAX)?;
        let mut parts = piece.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            self.bound("export_line_bytes", self.line.len() + part.len(), EXPORT_LINE_BYTES_MAX)?;
            self.line.extend_from_slice(part);
            if parts.peek().is_some() {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        self.number += 1;
        let line = std::mem::take(&mut self.line);
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let row = serde_json::from_slice(&line);
        let wrong = |e| {
            Problem::new(ErrorCode::InvalidJson, format!("line {} is not one of an export: {e}", self.number))
        };
        self.rows.push(row.map_err(wrong)?);
        Ok(())
    }

    fn bound(&self, name: &str, bytes: usize, most: usize) -> Result<(), Failure> {
        if bytes <= most {
            return Ok(());
        }
        let detail = format!("line {} goes beyond {most} bytes", self.number + 1);
        Err(Problem::new(ErrorCode::PayloadTooLarge, detail).limit(name, most as u64).into())
    }
}
