//! Requests that wait to be counted with other gateways. Python counts them, in the batches in which it calls the server
//! of the counters, and answers in batches too.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

use crate::handover::locked;
use crate::quotas::tenant::Amounts;

/// A request that is to be counted.
#[derive(Clone, Debug)]
pub struct Call {
    pub ticket: u64,
    pub tenant: String,
    /// Of the request.
    pub id: String,
    pub amounts: Amounts,
}

/// The end of a request that was counted: what it used, where that is known.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub tenant: String,
    pub id: String,
    pub used: [Option<i64>; 3],
}

/// What became of a call: seconds until each bucket is full, in the order of the tenant's limits; None: it was not taken,
/// or that is not known.
pub type Answer = Option<Vec<f64>>;

/// Calls that wait for their answers. There are no more than requests in flight.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<(u64, HashMap<u64, oneshot::Sender<Answer>>)>);

impl Waiting {
    /// A new ticket, where its answer comes, and whether nothing else waits for one.
    pub fn ticket(&self) -> (u64, oneshot::Receiver<Answer>, bool) {
        let (answer, receiver) = oneshot::channel();
        let (last, waiting) = &mut *locked(&self.0);
        *last += 1;
        waiting.insert(*last, answer);
        (*last, receiver, waiting.len() == 1)
    }

    /// Nothing waits for this ticket any more. False: its answer has come.
    pub fn forget(&self, ticket: u64) -> bool {
        locked(&self.0).1.remove(&ticket).is_some()
    }

    /// Gives answers to those that wait; returns the tickets of those that no longer do.
    pub fn answer(&self, answers: Vec<(u64, Answer)>) -> Vec<u64> {
        let waiting = &mut locked(&self.0).1;
        let is_left = |(ticket, answer)| {
            let sent = waiting.remove(&ticket).map(|sender| sender.send(answer));
            (!matches!(sent, Some(Ok(())))).then_some(ticket)
        };
        answers.into_iter().filter_map(is_left).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_once_and_one_that_nothing_waits_for_is_returned() {
        let waiting = Waiting::default();
        let ((first, mut receiver, is_first), (second, dropped, is_second), (third, _kept, _)) =
            (waiting.ticket(), waiting.ticket(), waiting.ticket());
        assert!(is_first && !is_second);
        drop(dropped);
        assert!(waiting.forget(third) && !waiting.forget(third));
        let answers = [first, second, third].map(|ticket| (ticket, Some(vec![1.0])));
        assert_eq!(waiting.answer(answers.to_vec()), [second, third]);
        assert_eq!(receiver.try_recv(), Ok(Some(vec![1.0])));
        assert_eq!(waiting.answer(vec![(first, None)]), [first]);
    }
}
