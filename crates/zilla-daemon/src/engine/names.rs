//! The names of users and groups in a request's properties (`userused@joe`), looked up.
//!
//! The host's tables may be a directory service's, which may not answer. So it is never a thread
//! that serves requests that asks them, and none of a request's names is asked for twice, however
//! many datasets it is about. A request has one place at a time for that, of [`TOGETHER`]; guests
//! have [`GUESTS_TOGETHER`] of their own, so that nobody waits for them. What takes longer than
//! [`PATIENCE`] is refused; a name that is being asked for then keeps its place until there is an
//! answer.

use super::accounts::owner_named;
use super::errors::Answer;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use zilla_control::owners::{self, Kind};
use zilla_control::{ApiError, Caller, ErrorCode};

const TOGETHER: usize = 16;
const GUESTS_TOGETHER: usize = 4;
/// So long may all names of a request take.
const PATIENCE: Duration = Duration::from_secs(30);

static PLACES: Semaphore = Semaphore::const_new(TOGETHER);
static GUEST_PLACES: Semaphore = Semaphore::const_new(GUESTS_TOGETHER);

/// Names and what they mean; None: nobody is called so.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names(BTreeMap<(Kind, String), Option<u32>>);

impl Names {
    /// Those in some properties, for who asks.
    pub(super) async fn of<'a>(
        caller: &Caller,
        properties: impl IntoIterator<Item = &'a String>,
    ) -> Answer<Names> {
        let places = if caller.owner { &PLACES } else { &GUEST_PLACES };
        look_up(properties, places, owners::parse).await
    }

    pub(super) fn id(&self, kind: Kind, name: &str) -> Option<u32> {
        self.0.get(&(kind, name.to_owned())).copied().flatten()
    }
}

async fn look_up<'a>(
    properties: impl IntoIterator<Item = &'a String>,
    places: &'static Semaphore,
    ask: impl Fn(Kind, &str) -> Option<u32> + Send + 'static,
) -> Answer<Names> {
    let named = properties.into_iter().filter_map(|p| owner_named(p));
    let mut names = Names(named.map(|(kind, name)| ((kind, name.to_owned()), None)).collect());
    if names.0.is_empty() {
        return Ok(names);
    }
    let asked = async {
        let place = places.acquire().await.ok()?;
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _place = place;
            for ((kind, name), id) in &mut names.0 {
                // Nobody waits any more.
                if tell.is_closed() {
                    return;
                }
                *id = ask(*kind, name);
            }
            let _ = tell.send(names);
        });
        told.await.ok()
    };
    let late = "the host's tables of users and groups do not answer";
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Some(names)) => Ok(names),
        _ => Err(ApiError::with(ErrorCode::Busy, late)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex};

    fn properties(all: &[&str]) -> Vec<String> {
        all.iter().map(|p| (*p).to_owned()).collect()
    }

    #[tokio::test]
    async fn each_name_is_asked_for_once_and_numbers_of_projects_never() {
        let all = properties(&["userused@joe", "userquota@joe", "groupused@joe", "projectused@7", "used"]);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = asked.clone();
        let ask = move |kind, name: &str| {
            notes.lock().unwrap().push((kind, name.to_owned()));
            (kind == Kind::User).then_some(7)
        };
        static ENOUGH: Semaphore = Semaphore::const_new(1);
        let names = look_up(&all, &ENOUGH, ask).await.unwrap();
        assert_eq!((names.id(Kind::User, "joe"), names.id(Kind::Group, "joe")), (Some(7), None));
        assert_eq!(names.id(Kind::User, "7"), None);
        assert_eq!(asked.lock().unwrap().len(), 2);
        assert_eq!(
            look_up(&properties(&["used"]), &ENOUGH, |_, _| panic!()).await.unwrap(),
            Names::default()
        );
    }

    /// One thread serves all requests here. A service that does not answer keeps its place, and
    /// nobody's but that.
    #[tokio::test]
    async fn a_directory_that_does_not_answer_stops_nobody() {
        static FEW: Semaphore = Semaphore::const_new(1);
        static OTHERS: Semaphore = Semaphore::const_new(1);
        let all = properties(&["userused@joe", "userused@zoe"]);
        let (answer, answers) = mpsc::channel::<u32>();
        let count = Arc::new(Mutex::new(0));
        let times = count.clone();
        let silent = move |_: Kind, _: &str| {
            *times.lock().unwrap() += 1;
            answers.recv().ok()
        };
        let waits = tokio::spawn({
            let all = all.clone();
            async move { look_up(&all, &FEW, silent).await }
        });
        while *count.lock().unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(look_up(&all, &OTHERS, |_, _| Some(7)).await.unwrap().id(Kind::User, "joe"), Some(7));
        // Whoever else has only that place waits for it, and not for ever.
        tokio::time::pause();
        let mut second = Box::pin(look_up(&all, &FEW, |_, _| Some(7)));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        tokio::time::advance(PATIENCE + Duration::from_secs(1)).await;
        let late = second.await.unwrap_err();
        assert!(late.description().contains("do not answer"), "{late}");
        assert!(waits.await.unwrap().is_err());
        tokio::time::resume();
        // It answers, and the rest is not asked for: nobody waits for it.
        answer.send(1).unwrap();
        let place = tokio::time::timeout(Duration::from_secs(60), FEW.acquire()).await;
        place.expect("the place is given back").unwrap().forget();
        assert_eq!(*count.lock().unwrap(), 1);
    }
}
