//! Pages of what happened, for the surfaces that show it.

use solehold_api::{
    page::{self, HistoryQuery, PageCursor},
    watch::LeaseEvent,
};
use solehold_core::{event::Event, key::Name, time::Revision};
use solehold_engine::store::EventQuery;

use crate::http::{ApiError, Context};

/// A page of a tenant's events, and where the next begins.
pub async fn event_page(
    context: &Context,
    tenant: &Name,
    of: EventQuery,
    query: &HistoryQuery,
) -> Result<(Vec<LeaseEvent>, Option<PageCursor>), ApiError> {
    let of = EventQuery { limit: page::size(query.limit)?, ..of };
    let seen = query.cursor.as_ref().map(revision).transpose()?;
    let asked = match (query.newest_first, seen) {
        (true, Some(_)) => EventQuery { newest_before: seen, ..of },
        (true, None) => of.newest(),
        (false, _) => EventQuery { after: seen.unwrap_or_default(), ..of },
    };
    let page = context.engine().events(&asked).await?;
    let last = page.events.last().filter(|_| page.events.len() == asked.limit);
    let next = last.map(|event| PageCursor(vec![event.revision.0.to_string()]));
    let is_its = |event: &&Event| event.key.tenant == *tenant && context.caller().may_see(&event.key);
    let its = page.events.iter().filter(is_its);
    Ok((its.map(|event| LeaseEvent::of(event, page.head.epoch)).collect(), next))
}

fn revision(cursor: &PageCursor) -> Result<Revision, ApiError> {
    let [revision] = cursor.0.as_slice() else { return Err(page::unknown_cursor().into()) };
    revision.parse().map(Revision).map_err(|_| page::unknown_cursor().into())
}
