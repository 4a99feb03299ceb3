use super::*;
use crate::types::{
    DatasetInfo, DatasetKind, DatasetQuery, DatasetQueryReply, PoolSync, PoolWait, PoolWaitReply,
};
use crate::{Asked, GUEST_REPLY_LIMIT, Outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// It lets everyone have everything done, and is never done before it is told.
struct Slow {
    begun: Semaphore,
    go_on: Semaphore,
    ended: Arc<Semaphore>,
}

impl Slow {
    fn new() -> Arc<Slow> {
        let none = || Semaphore::new(0);
        Arc::new(Slow { begun: none(), go_on: none(), ended: Arc::new(none()) })
    }
}

/// Tells that a future has ended, however it did.
struct Tells(Arc<Semaphore>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Backend for Slow {
    async fn judge(&self, _: &Caller, _: &Asked) -> Result<(), ApiError> {
        Ok(())
    }

    async fn pool_sync(&self, caller: &Caller, r: PoolSync) -> Result<(), ApiError> {
        self.begun.add_permits(1);
        // In steps.
        while r.name == "until he is gone" && !caller.presence.is_gone() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.go_on.acquire().await.unwrap().forget();
        self.ended.add_permits(1);
        Ok(())
    }

    async fn pool_wait(&self, _: &Caller, _: PoolWait) -> Result<PoolWaitReply, ApiError> {
        let _ended = Tells(self.ended.clone());
        self.begun.add_permits(1);
        std::future::pending().await
    }

    async fn dataset_query(&self, _: &Caller, r: DatasetQuery) -> Result<DatasetQueryReply, ApiError> {
        let one = DatasetInfo { name: r.roots.concat(), kind: DatasetKind::Volume, ..Default::default() };
        let most = GUEST_REPLY_LIMIT / serde_json::to_vec(&one).unwrap().len();
        Ok(DatasetQueryReply { datasets: vec![one; most], ..DatasetQueryReply::default() })
    }
}

async fn asked_for(
    operation: &str,
    request: &str,
    backend: &Arc<Slow>,
    stopped: watch::Receiver<bool>,
) -> (UnixStream, JoinHandle<()>) {
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let caller = Caller { uid: 7, ..Caller::default() };
    let served = tokio::spawn(connection(ours, backend.clone(), caller, None, stopped));
    let body = format!(r#"{{"protocol":1,"request":{request}}}"#);
    let length = body.len();
    let text = format!("POST /v1/{operation} HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{body}");
    theirs.write_all(text.as_bytes()).await.unwrap();
    (theirs, served)
}

#[tokio::test]
async fn what_only_looks_ends_with_its_client_and_what_changes_learns_of_it() {
    let limit = Duration::from_secs(20);
    let backend = Slow::new();
    let (_stop, stopped) = watch::channel(false);
    for (operation, request) in [("pool_wait", "{}"), ("pool_sync", r#"{"name":"until he is gone"}"#)] {
        let (theirs, served) = asked_for(operation, request, &backend, stopped.clone()).await;
        backend.begun.acquire().await.unwrap().forget();
        assert_eq!(backend.ended.available_permits(), 0, "{operation}: he waits");
        drop(theirs);
        tokio::time::timeout(limit, served).await.expect("the connection ends").unwrap();
        if operation == "pool_sync" {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(backend.ended.available_permits(), 0, "it is not dropped half-way");
            backend.go_on.add_permits(1);
        }
        let ended = tokio::time::timeout(limit, backend.ended.acquire()).await;
        ended.expect("it goes on").unwrap().forget();
    }
}

#[tokio::test]
async fn a_guest_gets_no_endless_answer_and_the_owner_what_there_is() {
    let backend = Slow::new();
    let body = br#"{"protocol":1,"request":{"roots":["tank/one"]}}"#;
    for owner in [false, true] {
        let caller = Caller { owner, ..Caller::default() };
        let answer = dispatch(&*backend, caller, "dataset_query", body).await;
        // (The datasets alone fill the limit; commas between them are too much.)
        assert_eq!(answer.len() > GUEST_REPLY_LIMIT, owner);
        let outcome = serde_json::from_slice::<Outcome<DatasetQueryReply>>(&answer).unwrap();
        match outcome {
            Outcome::Ok(reply) => assert!(owner && reply.datasets.len() > 1000),
            Outcome::Err(e) => assert!(!owner && e.description().contains("ask for less"), "{e}"),
        }
    }
}

#[tokio::test]
async fn a_guest_who_hangs_up_has_his_place_until_what_he_asked_for_is_done() {
    let guests = Arc::new(Guests::new(GUESTS, GUESTS_OF_ONE));
    let backend = Slow::new();
    let (_stop, stopped) = watch::channel(false);
    let body = r#"{"protocol":1,"request":{}}"#;
    let asked = format!("POST /v1/pool_sync HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let limit = Duration::from_secs(20);
    for n in 1..=GUESTS_OF_ONE {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let caller = Caller { uid: 7, ..Caller::default() };
        let place = guests.place(Whose::User(7)).map(Arc::new);
        assert!(place.is_some(), "{n}");
        let served = tokio::spawn(connection(ours, backend.clone(), caller, place, stopped.clone()));
        theirs.write_all(asked.as_bytes()).await.unwrap();
        backend.begun.acquire().await.unwrap().forget();
        drop(theirs);
        tokio::time::timeout(limit, served).await.expect("the connection ends").unwrap();
        assert_eq!(guests.all().get(&Whose::User(7)), Some(&n));
    }
    assert!(guests.place(Whose::User(7)).is_none(), "and no more of them");
    assert!(guests.place(Whose::User(8)).is_some());
    backend.go_on.add_permits(GUESTS_OF_ONE);
    let given_back = async {
        while !guests.all().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(limit, given_back).await.expect("it was given back");
    // Who waits for his answer gets it.
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    let caller = Caller { uid: 7, ..Caller::default() };
    tokio::spawn(connection(
        ours,
        backend.clone(),
        caller,
        guests.place(Whose::User(7)).map(Arc::new),
        stopped,
    ));
    backend.go_on.add_permits(1);
    theirs.write_all(asked.as_bytes()).await.unwrap();
    let mut status = [0; 15];
    theirs.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
}

#[test]
fn one_guest_leaves_room_for_others() {
    let guests = Arc::new(Guests::new(GUESTS, GUESTS_OF_ONE));
    let mut of_one: Vec<Place> = (0..GUESTS_OF_ONE).map(|_| guests.place(Whose::User(7)).unwrap()).collect();
    assert!(guests.place(Whose::User(7)).is_none());
    let others: Vec<Place> = (100..).map_while(|uid| guests.place(Whose::User(uid))).collect();
    assert_eq!(others.len(), GUESTS - GUESTS_OF_ONE);
    of_one.pop();
    assert!(guests.place(Whose::User(7)).is_some(), "it was given back");
    drop((of_one, others));
    assert!(guests.all().is_empty());
}

/// Whoever can be many takes no more than half from those who cannot.
#[test]
fn those_who_may_be_one_leave_half_to_others() {
    let guests = Arc::new(Guests::new(GUESTS, GUESTS_OF_ONE));
    let mut taken: Vec<Place> = (0..GUESTS_OF_ONE).map_while(|_| guests.place(Whose::Unknown(7))).collect();
    assert_eq!(taken.len(), GUESTS_OF_ONE);
    assert!(guests.place(Whose::Unknown(7)).is_none());
    let other = guests.place(Whose::Unknown(8));
    assert!(other.is_some(), "another user has places beside his");
    taken.extend(other);
    taken.extend((0..).map_while(|n| guests.place(Whose::Container(1, n))));
    assert_eq!(taken.len(), GUESTS / 2);
    assert!(guests.place(Whose::Unknown(9)).is_none());
    let users: Vec<Place> = (0..).map_while(|uid| guests.place(Whose::User(uid))).collect();
    assert_eq!(users.len(), GUESTS / 2);
}
