use super::*;
use crate::{Next, work};

#[tokio::test]
async fn a_key_is_given_out_once_and_to_one_worker() {
    let (queue, stop) = (Queue::default(), CancellationToken::new());
    queue.add(1);
    queue.add(1);
    let guard = queue.next(&stop).await.unwrap();
    assert_eq!(*guard.key(), 1);
    queue.add(1);
    assert!(queue.is_empty(), "not given out while it is worked on");
    drop(guard);
    assert_eq!(queue.len(), 1, "comes again as it was added meanwhile");
    drop(queue.next(&stop).await.unwrap());
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_delayed_key_comes_at_its_time_or_with_an_earlier_one() {
    let (queue, stop) = (Queue::default(), CancellationToken::new());
    let start = Instant::now();
    queue.add_after("late", Duration::from_secs(5));
    queue.add_after("late", Duration::from_secs(9));
    queue.add_after("soon", Duration::from_secs(5));
    queue.add_after("soon", Duration::from_secs(1));
    assert_eq!(*queue.next(&stop).await.unwrap().key(), "soon");
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(*queue.next(&stop).await.unwrap().key(), "late");
    assert_eq!(start.elapsed().as_secs(), 5);
    queue.add_after("now", Duration::from_secs(5));
    queue.add("now");
    drop(queue.next(&stop).await.unwrap());
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn what_failed_can_be_hurried_and_waits_no_longer_than_it_is_told() {
    let (queue, stop) =
        (Queue::new(Duration::from_secs(100), Duration::from_secs(1000)), CancellationToken::new());
    let start = Instant::now();
    queue.add_after("timed", Duration::from_secs(7));
    queue.retry("failed");
    queue.retry_now();
    assert_eq!(*queue.next(&stop).await.unwrap().key(), "failed");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(*queue.next(&stop).await.unwrap().key(), "timed");
    assert_eq!(start.elapsed().as_secs(), 7);
    queue.retry_within("failed", Duration::from_secs(30));
    assert_eq!(*queue.next(&stop).await.unwrap().key(), "failed");
    assert_eq!(start.elapsed().as_secs(), 37);
}

#[tokio::test(start_paused = true)]
async fn failures_double_the_pause_until_forgotten() {
    let (queue, stop) =
        (Queue::new(Duration::from_secs(1), Duration::from_secs(60)), CancellationToken::new());
    let mut pauses = vec![];
    for _ in 0..3 {
        let start = Instant::now();
        queue.retry(7);
        drop(queue.next(&stop).await.unwrap());
        pauses.push(start.elapsed().as_secs());
    }
    assert_eq!(pauses, [1, 2, 4]);
    queue.forget(&7);
    let start = Instant::now();
    queue.retry(7);
    drop(queue.next(&stop).await.unwrap());
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// MC-143: retries of all keys together keep to the rate after a burst; additions do not wait.
#[tokio::test(start_paused = true)]
async fn mc_143_retries_keep_to_a_rate() {
    let (stop, start) = (CancellationToken::new(), Instant::now());
    let queue = Queue::default().limited(Rate { qps: 10.0, burst: 100 });
    for key in 0..150 {
        queue.retry(key);
    }
    queue.add(1000);
    assert_eq!(*queue.next(&stop).await.unwrap().key(), 1000);
    for _ in 0..100 {
        drop(queue.next(&stop).await.unwrap());
    }
    assert!(start.elapsed().as_millis() < 100, "the burst: {:?}", start.elapsed());
    for _ in 100..150 {
        drop(queue.next(&stop).await.unwrap());
    }
    assert_eq!(start.elapsed().as_secs(), 5);
}

/// Keys that fail again and again because they are added again and again accumulate no debt: once their
/// cause is gone, N keys are done after N tokens.
#[tokio::test(start_paused = true)]
async fn a_burst_of_failures_recovers_however_often_keys_failed() {
    let stop = CancellationToken::new();
    let most = Duration::from_secs(5);
    let queue = Queue::new(Duration::from_millis(5), most).limited(Rate { qps: 10.0, burst: 100 });
    let healed = Instant::now() + Duration::from_secs(30);
    let done = Arc::new(Mutex::new(HashSet::new()));
    let (adding, list, end) = (queue.clone(), done.clone(), stop.clone());
    let events = async move {
        // 200 failures a second, and 10 tokens.
        while Instant::now() < healed {
            (0..200).for_each(|key| adding.add(key));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let worker = work("test", &queue, 4, &stop, move |key: i32| {
        let (list, end) = (list.clone(), end.clone());
        async move {
            if Instant::now() < healed {
                return Err("not there");
            }
            let mut list = list.lock();
            list.insert(key);
            if list.len() == 200 {
                end.cancel();
            }
            Ok(Next::OnChange)
        }
    });
    tokio::join!(events, worker);
    let took = healed.elapsed();
    assert_eq!(done.lock().len(), 200);
    assert!(took <= Duration::from_secs(20) + most, "{took:?}");
    let state = queue.0.state.lock();
    assert!(state.due.is_empty() && state.delayed.is_empty() && state.failures.is_empty());
}

/// A key whose clones panic, which brings its worker down outside of what is caught.
#[derive(PartialEq, Eq, Hash, Debug)]
struct PanickingKey;

impl Clone for PanickingKey {
    fn clone(&self) -> Self {
        panic!("brittle")
    }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "brittle")]
async fn a_worker_that_panics_is_not_lost() {
    let (queue, stop) = (Queue::default(), CancellationToken::new());
    {
        let mut state = queue.0.state.lock();
        state.ready.push_back((PanickingKey, Instant::now()));
    }
    work("test", &queue, 2, &stop, |_: PanickingKey| async { Ok::<_, &str>(Next::OnChange) }).await;
}
