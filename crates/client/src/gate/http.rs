//! A server as the source of a gate.

use async_trait::async_trait;
use reqwest::{Method, Response};
use solehold_api::{
    ops::Ready,
    paths,
    problem::ErrorCode,
    resources::{HeldLease, ResourceBody},
    sse::{self, Decoder},
    watch::{Cursor, WatchFrame},
};
use solehold_core::{
    fence::{Mark, MarkLookup},
    key::{Name, ResourceKey, SessionId},
    time::Token,
};
use std::collections::VecDeque;

use super::source::{Frames, NoWatch, Source};
use crate::{
    authority::AuthorityError,
    http::{Http, Lane, denied, pool::Call, transport::root_cause},
};

#[async_trait]
impl Source for Http {
    async fn head(&self) -> Result<Cursor, AuthorityError> {
        let call = self.call(Method::GET, paths::READY.to_owned());
        let ready = self.ask::<Ready>(Lane::Work, call).await?.map_err(denied)?;
        ready.cursor.ok_or_else(|| AuthorityError::unreachable("the server does not say how far it is"))
    }

    async fn newest(&self, key: &ResourceKey) -> Result<(MarkLookup, Option<u64>), AuthorityError> {
        let path = paths::resource(key.kind.as_str(), key.key.as_str());
        let call = of_tenant(self, self.call(Method::GET, path), &key.tenant);
        match self.ask::<ResourceBody>(Lane::Work, call).await? {
            Ok(resource) if key.is_slot() => {
                let held = resource.shared.iter().find(|lease| lease.slot == Some(key.slot));
                let mark = |held: &HeldLease| Mark {
                    token: Token(held.token),
                    session: held.session_id.map(SessionId),
                };
                let newest = held.map_or(MarkLookup::Nothing, |held| MarkLookup::Newest(mark(held)));
                Ok((newest, resource.epoch))
            }
            Ok(resource) => {
                let session = resource.lease.and_then(|lease| lease.session_id).map(SessionId);
                let newest = Mark { token: Token(resource.last_token), session };
                Ok((MarkLookup::Newest(newest), resource.epoch))
            }
            Err(refusal) if refusal.code == ErrorCode::NotFound => Ok((MarkLookup::Nothing, None)),
            Err(refusal) if refusal.code == ErrorCode::Forbidden => Ok((MarkLookup::Hidden, None)),
            Err(refusal) => Err(denied(refusal)),
        }
    }

    async fn watch(
        &self,
        tenant: &Name,
        kind: Option<&Name>,
        from: Option<Cursor>,
    ) -> Result<Box<dyn Frames>, NoWatch> {
        let mut call = of_tenant(self, self.call(Method::GET, paths::watch()), tenant);
        call.query.extend(kind.map(|kind| ("kind", kind.to_string())));
        call.query.extend(from.map(|from| ("from", from.to_string())));
        match self.servers().stream(&call).await? {
            Ok(response) => Ok(Box::new(SseFrames::new(response))),
            Err(refusal) if refusal.code == ErrorCode::Compacted => Err(NoWatch::Compacted),
            Err(refusal) => Err(denied(refusal).into()),
        }
    }
}

/// A request about a tenant, unless the client is configured for one already.
fn of_tenant(http: &Http, mut call: Call, tenant: &Name) -> Call {
    if !http.servers().has_tenant() {
        call.query.push(("tenant", tenant.to_string()));
    }
    call
}

struct SseFrames {
    response: Response,
    decoder: Decoder,
    frames: VecDeque<sse::Frame>,
}

impl SseFrames {
    fn new(response: Response) -> Self {
        Self { response, decoder: Decoder::default(), frames: VecDeque::new() }
    }
}

#[async_trait]
impl Frames for SseFrames {
    async fn next(&mut self) -> Result<Option<WatchFrame>, AuthorityError> {
        loop {
            while let Some(frame) = self.frames.pop_front() {
                // Frames of a type that this client does not know are skipped.
                if let Some(frame) = WatchFrame::from_sse(&frame)
                    .map_err(|error| AuthorityError::unreachable(error.to_string()))?
                {
                    return Ok(Some(frame));
                }
            }
            let piece = self
                .response
                .chunk()
                .await
                .map_err(|error| AuthorityError::unreachable(root_cause(&error)))?;
            let Some(piece) = piece else { return Ok(None) };
            self.frames.extend(
                self.decoder.push(&piece).map_err(|error| AuthorityError::unreachable(error.to_string()))?,
            );
        }
    }
}
