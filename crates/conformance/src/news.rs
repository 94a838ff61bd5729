//! News of sessions: which sessions are notified of which events.

use std::{collections::BTreeSet, time::Duration};

use solehold_core::{command::*, key::*, lease::Declaration};
use solehold_engine::{Engine, news::SessionNews};

use crate::{Fixture, kit::*};

/// No case waits for as long as that: if it did, the word never came.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for a word to come that must not.
const A_WHILE: Duration = Duration::from_millis(300);

async fn ask_after(engine: &Engine, sessions: &[SessionId], last: &SessionNews) -> SessionNews {
    let known: Vec<_> = sessions.iter().map(|id| (*id, solehold_core::time::Revision(u64::MAX))).collect();
    engine.session_news(&known, None, last.cursor, PATIENCE).await.expect("an answer")
}

fn only(id: SessionId) -> BTreeSet<SessionId> {
    [id].into()
}

/// Both sides of a hand-over are told, the holder of what was revoked, and the holder of what was declared anew; nobody
/// of what it did itself.
pub async fn holders_are_told_of_what_others_do(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let ann = bench.session("ann", LONG_MS).await;
    let bea = bench.session("bea", LONG_MS).await;
    let both = [ann.id, bea.id];
    let job = key("told");
    let quiet = |last: SessionNews, what: &'static str| {
        let engine = engine.clone();
        async move {
            let known: Vec<_> =
                both.iter().map(|id| (*id, solehold_core::time::Revision(u64::MAX))).collect();
            let news = engine.session_news(&known, None, last.cursor, A_WHILE).await.expect("an answer");
            assert_eq!(news.sessions, BTreeSet::new(), "{what}");
            news
        }
    };
    let asked = Acquire { request: Some(name("r1")), ..ask_on(&job, &ann) };
    let last = quiet(SessionNews::default(), "nothing happened").await;
    engine.submit(Command::Acquire(asked)).await.expect("an outcome").expect("granted");
    let last = quiet(last, "who asks is answered").await;

    let steps: [(Command, BTreeSet<SessionId>); 3] = [
        (declare(&job, Declaration { site: Some(name("north")), ..Default::default() }), only(ann.id)),
        (hand_over(&job, bea.id, LONG_MS), both.into()),
        (release(by_session(&job, ann.id)), only(bea.id)),
    ];
    let mut last = last;
    for (command, told) in steps {
        let waiter = engine.clone();
        let from = last.clone();
        let waiting = tokio::spawn(async move { ask_after(&waiter, &both, &from).await });
        engine.submit(command.clone()).await.expect("an outcome").expect("done");
        let mut news = waiting.await.expect("no panic");
        // Two events are two words, if they come one after the other.
        while news.sessions.len() < told.len() {
            let more = ask_after(&engine, &both, &news).await;
            news = SessionNews { sessions: &news.sessions | &more.sessions, ..more };
        }
        assert_eq!(news.sessions, told, "{command:?}");
        last = news;
    }
    quiet(last, "all was told").await;
    engine.stop().await;
}

/// Whoever asks late, or from nowhere, is told by the rows: the set is newer than the one known, or the session is
/// over.
pub async fn late_askers_are_told_by_the_rows(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let ann = bench.session("ann", LONG_MS).await;
    let job = key("late");
    let grant = bench.grant(ask_on(&job, &ann)).await;
    let at = |id, revision| [(id, revision)];
    let news =
        engine.session_news(&at(ann.id, ann.lease_revision), None, None, PATIENCE).await.expect("an answer");
    assert_eq!(news.sessions, only(ann.id), "its set is newer");
    let known = at(ann.id, solehold_core::time::Revision(token(&grant).0));
    let news = engine.session_news(&known, None, None, A_WHILE).await.expect("an answer");
    assert_eq!(news.sessions, BTreeSet::new(), "its set is known");
    bench.done(close(ann.id)).await;
    let news = engine.session_news(&known, None, None, PATIENCE).await.expect("an answer");
    assert_eq!(news.sessions, only(ann.id), "it is over");
    let bea = bench.session("bea", LONG_MS).await;
    let known = at(bea.id, bea.lease_revision);
    let strangers = name("strangers");
    let news = engine.session_news(&known, Some(&strangers), None, PATIENCE).await.expect("an answer");
    assert_eq!(news.sessions, only(bea.id), "to another tenant it does not exist");
    let nobody = SessionId(uuid::Uuid::new_v4());
    let news =
        engine.session_news(&at(nobody, ann.lease_revision), None, None, PATIENCE).await.expect("an answer");
    assert_eq!(news.sessions, only(nobody), "it never was");
    engine.stop().await;
}

/// No event says that a session was superseded; it is news all the same.
pub async fn a_superseded_session_is_notified(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let first = bench.session("ann", LONG_MS).await;
    let known = [(first.id, first.lease_revision)];
    let start = engine.session_news(&known, None, None, A_WHILE).await.expect("an answer");
    assert_eq!(start.sessions, BTreeSet::new(), "nothing happened");
    let waiting = engine.session_news(&known, None, start.cursor, PATIENCE * 10);
    tokio::pin!(waiting);
    // One poll subscribes.
    tokio::select! {
        biased;
        news = &mut waiting => panic!("nothing happened yet: {news:?}"),
        () = std::future::ready(()) => {}
    }
    engine.submit(open("ann", LONG_MS)).await.expect("an outcome").expect("opened");
    let news = tokio::time::timeout(PATIENCE, waiting).await.expect("before its time").expect("an answer");
    assert_eq!(news.sessions, only(first.id));
    let late = engine.session_news(&known, None, news.cursor, PATIENCE * 10);
    let late = tokio::time::timeout(PATIENCE, late).await.expect("at once").expect("an answer");
    assert_eq!(late.sessions, only(first.id), "a request that just missed it");
    // Another replica learns of it from the row, at the end of the request.
    let other = bench.engine();
    let at_other = other.session_news(&known, None, news.cursor, A_WHILE).await.expect("an answer");
    assert_eq!(at_other.sessions, only(first.id), "at another replica");
    other.stop().await;
    engine.stop().await;
}
