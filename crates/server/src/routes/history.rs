//! Pages of what happened, for the surfaces that show it.

use solehold_api::{
    page::{self, PageCursor, PageQuery},
    watch::LeaseEvent,
};
use solehold_core::{event::Event, key::Name, time::Revision};
use solehold_engine::store::EventQuery;

use crate::{Context, http::ApiError};

/// A page of a tenant's events, and where the next begins.
pub async fn event_page(
    context: &Context,
    tenant: &Name,
    of: EventQuery,
    query: &PageQuery,
) -> Result<(Vec<LeaseEvent>, Option<PageCursor>), ApiError> {
    let limit = page::size(query.limit)?;
    let after = query.cursor.as_ref().map_or(Ok(Revision(0)), after)?;
    let page = context.engine().events(&EventQuery { after, limit, ..of }).await?;
    let last = page.events.last().filter(|_| page.events.len() == limit);
    let next = last.map(|event| PageCursor(vec![event.revision.0.to_string()]));
    let is_its = |event: &&Event| event.key.tenant == *tenant && context.caller().may_see(&event.key);
    let its = page.events.iter().filter(is_its);
    Ok((its.map(|event| LeaseEvent::of(event, page.head.epoch)).collect(), next))
}

fn after(cursor: &PageCursor) -> Result<Revision, ApiError> {
    let [revision] = cursor.0.as_slice() else { return Err(page::unknown_cursor().into()) };
    revision.parse().map(Revision).map_err(|_| page::unknown_cursor().into())
}
