//! What events, commands, names and views say about themselves: stores, metrics and watchers go by it.

use solehold_core::{
    command::{Acquire, AskedTenure, Command, Footprint, HandOver, OpenSession, StateWrite, StatusBy, Wait},
    event::{Change, Event},
    key::{Document, HolderKey, LeaseId, Name, RequestKey},
    lease::{LeaseStatus, Resource},
    limits,
    outcome::LeaseView,
    request::Requester,
    session::HolderStatus,
    time::{Revision, Token},
};

use crate::common::{Proof, TTL_MS, World, document, holder, key, name, on};

fn events(w: &mut World, command: Command) -> Vec<Event> {
    let changes = w.run(&command).changes;
    changes.into_iter().filter_map(|c| if let Change::Event(e) = c { Some(e) } else { None }).collect()
}

#[test]
fn an_event_says_which_lease_holder_session_and_token_it_is_about() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    let ask = Acquire { tenure: AskedTenure::Session(ann), ..w.asks("ann", "lobby") };
    let lease = ask.lease;
    let about = |e: &Event| (e.lease(), e.holder().map(Name::to_string), e.session(), e.token());
    let its = |token| (Some(lease), Some("ann".to_owned()), Some(ann), token);
    let granted = events(&mut w, Command::Acquire(ask));
    assert_eq!(granted.iter().map(about).collect::<Vec<_>>(), [its(Some(Token(1)))]);
    let write = StateWrite { sequence: 1, document: document("[7]") };
    let written = events(&mut w, Command::WriteState { claim: on("lobby").token(1), write });
    assert_eq!(written.iter().map(about).collect::<Vec<_>>(), [(None, None, None, Some(Token(1)))]);
    let next = LeaseId(w.fresh());
    let offered = events(&mut w, Command::HandOver(HandOver::new(key("lobby"), next, bob, TTL_MS)));
    let offer = (Some(next), Some("bob".to_owned()), Some(bob), None);
    assert_eq!(offered.iter().map(about).collect::<Vec<_>>(), [offer]);
    let passed_on = events(&mut w, Command::Release { claim: on("lobby").token(1), state: None });
    let granted = (Some(next), Some("bob".to_owned()), Some(bob), Some(Token(5)));
    assert_eq!(passed_on.iter().map(about).collect::<Vec<_>>(), [its(Some(Token(1))), granted]);
    let declaration = Default::default();
    let declared = events(&mut w, Command::Declare { key: key("hall"), declaration, only_new: true });
    assert_eq!(declared.iter().map(about).collect::<Vec<_>>(), [(None, None, None, None)]);
}

#[test]
fn what_changes_beside_a_declared_resource_is_its_event_and_changes_no_row() {
    let mut w = World::new();
    let note = || Command::NoteConfig { key: key("lobby"), details: document("[1]") };
    w.told(note()).says("refused: resource scene/lobby of tenant acme does not exist", "");
    w.acquire("ann", "lobby");
    w.told(note()).says("refused: resource scene/lobby of tenant acme does not exist", "");
    w.declare("lobby", 0);
    let before = w.state.resource(&key("lobby")).cloned();
    w.told(note()).says("noted", "config_changed");
    assert_eq!(w.state.resource(&key("lobby")).cloned(), before);
}

#[test]
fn only_renewals_are_nobodys_news() {
    let mut w = World::new();
    let session = w.opens("ann");
    let tenant = name("acme");
    let quiet = [
        Command::Renew { claim: on("lobby"), ttl_ms: None, stats: None },
        Command::Heartbeat { tenant: tenant.clone(), session, holder: None, metrics: None },
        Command::HeardOf { holder: holder("ann"), metrics: None },
    ];
    assert!(quiet.iter().all(|command| !command.may_make_news()));
    let loud =
        [Command::Release { claim: on("lobby"), state: None }, Command::CloseSession { tenant, session }];
    assert!(loud.iter().all(Command::may_make_news));
}

#[test]
fn a_command_tells_the_ttl_that_it_asks_for() {
    let mut w = World::new();
    let session = w.opens("ann");
    let own = w.asks("ann", "lobby");
    let on_session = Acquire { tenure: AskedTenure::Session(session), ..own.clone() };
    let renew = |ttl_ms| Command::Renew { claim: on("lobby"), ttl_ms, stats: None };
    let open = Command::OpenSession(OpenSession {
        id: session,
        holder: holder("ann"),
        ttl_ms: 7_000,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    });
    assert_eq!(Command::Acquire(own).asked_ttl_ms(), Some(TTL_MS));
    assert_eq!(Command::Acquire(on_session).asked_ttl_ms(), None);
    assert_eq!((renew(Some(5_000)).asked_ttl_ms(), renew(None).asked_ttl_ms()), (Some(5_000), None));
    assert_eq!(open.asked_ttl_ms(), Some(7_000));
    assert_eq!((open.name(), renew(None).name()), ("open_session", "renew"));
}

/// Which rows are enough is for the properties; here is that each sort of name is passed on at all.
#[test]
fn a_footprint_has_every_row_that_a_command_names() {
    let mut w = World::new();
    let room = w.room();
    let session = w.opens("ann");
    let wait = Some(Wait { room, wait_ms: 1 });
    let ask = Acquire {
        tenure: AskedTenure::Session(session),
        request: Some(name("r")),
        wait,
        ..w.asks("ann", "a")
    };
    let lease = ask.lease;
    let key = ask.key.clone();
    let request = RequestKey { resource: key.clone(), holder: name("ann"), request: name("r") };
    let mut footprint = Footprint::default();
    for command in [
        Command::Acquire(ask),
        Command::Acquire(Acquire { holds_at_most: Some(1), ..w.asks("cat", "a") }),
        Command::CancelRequest(request.clone()),
        Command::Renew { claim: on("b"), ttl_ms: None, stats: None },
        Command::Release { claim: crate::common::lease(lease), state: None },
        Command::CloseSession { tenant: name("acme"), session },
        Command::SetStatus { holder: holder("ann"), status: HolderStatus::Active, by: StatusBy::Operator },
        Command::RemoveHolder { holder: holder("bob"), session: None },
        Command::RemoveRecord { collection: name("keys"), id: name("k") },
    ] {
        command.footprint(&mut footprint);
    }
    let expected = Footprint {
        resources: vec![key.clone(), key.clone(), key.clone(), crate::common::key("b")],
        leases: vec![lease],
        sessions: vec![session, room],
        whole_sessions: vec![session],
        holders: vec![holder("ann")],
        whole_holders: vec![holder("bob")],
        holdings: vec![holder("cat")],
        requests: vec![request.clone(), request],
        cancelled: vec![Requester { resource: key.clone(), holder: name("ann") }],
        waiters: vec![(key, lease)],
        records: vec![(name("keys"), name("k"))],
        moves: Vec::new(),
    };
    assert_eq!(footprint, expected);
}

#[test]
fn names_and_documents_are_texts_and_back() {
    let ann = name("ann");
    let text = document("[1]");
    assert_eq!((String::from(ann.clone()), String::from(text.clone())), ("ann".to_owned(), "[1]".to_owned()));
    assert_eq!(Document::try_from("[1]".to_owned()), Ok(text));
    assert_eq!(ann.as_str(), "ann");
    assert_eq!((ann.to_string(), format!("{ann:?}")), ("ann".to_owned(), "\"ann\"".to_owned()));
    assert_eq!(key("lobby").to_string(), "scene/lobby of tenant acme");
    assert_eq!(format!("{:?} {:?} {:?}", key("lobby"), Token(3), Revision(4)), "acme:scene/lobby #3 r4");
    assert_eq!((Token(3).to_string(), format!("{:?}", document("[2]"))), ("3".to_owned(), "[2]".to_owned()));
}

#[test]
fn a_room_is_told_from_a_holder() {
    let mut w = World::new();
    let room = w.room();
    let ann = w.opens("ann");
    let is_room = |id| w.state.session(id).map(|s| (s.is_room(), s.holder.is_room()));
    assert_eq!((is_room(room), is_room(ann)), (Some((true, true)), Some((false, false))));
}

#[test]
fn a_resource_names_the_sessions_of_its_leases_and_its_holder() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let bob = w.opens("bob");
    w.acquire_in(ann, "ann", "lobby");
    w.hand_over("lobby", bob);
    let resource = w.state.resource(&key("lobby")).expect("it is held");
    assert_eq!(resource.sessions().collect::<Vec<_>>(), [ann, bob]);
    assert_eq!(resource.holder(), Some(HolderKey { tenant: name("acme"), name: name("ann") }));
    assert_eq!(Resource::new(key("hall"), w.moment.now).holder(), None);
}

#[test]
fn a_lease_is_active_up_to_its_deadline_and_expired_from_there() {
    let mut w = World::new();
    w.acquire("ann", "lobby");
    let status = |w: &World| {
        let resource = w.state.resource(&key("lobby")).expect("it is held");
        let view = LeaseView::of(&w.state, resource, w.moment.now).expect("all is here");
        view.map(|view| (view.status, view.ttl_left_ms()))
    };
    w.wait(TTL_MS - 1);
    assert_eq!(status(&w), Some((LeaseStatus::Active, 1)));
    w.wait(1);
    assert_eq!(status(&w), Some((LeaseStatus::Expired, 0)));
}

#[test]
fn a_lease_is_renewed_with_its_session_but_not_by_what_came_before_it() {
    let mut w = World::new();
    let ann = w.opens("ann");
    let renewed_at = |w: &World| {
        let resource = w.state.resource(&key("lobby")).expect("it is held");
        LeaseView::of(&w.state, resource, w.moment.now).expect("all is here").and_then(|view| view.renewed_at)
    };
    w.wait(10);
    w.heartbeat(ann);
    w.acquire_in(ann, "ann", "lobby");
    assert_eq!(renewed_at(&w), None, "the heartbeat of the same moment came before the grant");
    w.wait(10);
    assert_eq!(renewed_at(&w), None);
    w.heartbeat(ann);
    assert_eq!(renewed_at(&w), Some(w.moment.now));
}

/// The bounds that the API's description and the guides promise in numbers.
#[test]
fn the_bounds_are_those_that_are_promised() {
    const HOUR_MS: u64 = 3_600_000;
    assert_eq!((limits::TTL_MS_MIN, limits::TTL_MS_MAX), (1_000, 24 * HOUR_MS));
    assert_eq!((limits::NAME_BYTES_MAX, limits::DOCUMENT_BYTES_MAX), (255, 65_536));
    assert_eq!((limits::LOCK_DELAY_MS_MAX, limits::PENDING_MS_MAX), (300_000, HOUR_MS));
    assert_eq!((limits::WAIT_MS_MAX, limits::REQUEST_KEPT_MS), (HOUR_MS, HOUR_MS));
    // What a program that keeps numbers as doubles can still tell from the next.
    assert_eq!(limits::REVISION_MAX, 9_007_199_254_740_991);
}
