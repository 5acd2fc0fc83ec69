//! A panic fails its client, and not the process of the caller.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, PoisonError, RwLock};

use respool_client::{CallError, Client};

/// A client that callers of another language share.
pub(crate) struct SharedClient {
    /// `None` once the client was closed.
    client: RwLock<Option<Client>>,
    /// The text of the panic that failed the client.
    failure: OnceLock<String>,
}

impl SharedClient {
    pub(crate) fn new(client: Client) -> SharedClient {
        SharedClient {
            client: RwLock::new(Some(client)),
            failure: OnceLock::new(),
        }
    }

    /// Runs `call` with the client. If `call` panics, its outcome is unknown, and each later call
    /// fails as not sent.
    pub(crate) fn with_client<T>(
        &self,
        call: impl FnOnce(&Client) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        self.fenced(|| {
            // The lock ends with this statement. Otherwise `close` would wait for it as long as the
            // call waits.
            let client = self
                .client
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            match client {
                Some(client) => call(&client),
                None => Err(CallError::NotSent("the client was closed".into())),
            }
        })
    }

    /// Runs `call`, which may panic. Fails if an earlier call has panicked.
    pub(crate) fn fenced<T>(
        &self,
        call: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if let Some(text) = self.failure.get() {
            let text = format!("the client failed earlier and is closed; open a new one: {text}");
            return Err(CallError::NotSent(text));
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            let text = text_of(&*panic);
            let _ = self.failure.set(text.clone());
            self.close();
            Err(CallError::Unknown(format!("the client failed: {text}")))
        })
    }

    /// Ends the client when the calls that are under way have ended.
    pub(crate) fn close(&self) {
        let mut client = self.client.write().unwrap_or_else(PoisonError::into_inner);
        let client = client.take();
        // A panic at the end of the client concerns no caller any more.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(client)));
    }
}

/// Runs `code`. A panic in it is `None`.
pub(crate) fn caught<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).ok()
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> SharedClient {
        SharedClient::new(Client::open("redis://127.0.0.1:1").expect("the client opens"))
    }

    /// The call that panics gets an error, and each later call, too. The process goes on.
    #[test]
    fn panic_fails_its_client_only() {
        let (failing, other) = (client(), client());
        let outcome: Result<(), CallError> = failing.with_client(|_| panic!("broken {}", 1));
        let unknown = CallError::Unknown("the client failed: broken 1".into());
        assert_eq!(outcome, Err(unknown));
        let later = failing.with_client(|_| Ok(()));
        let text = "the client failed earlier and is closed; open a new one: broken 1";
        assert_eq!(later, Err(CallError::NotSent(text.into())));
        assert_eq!(other.with_client(|_| Ok(())), Ok(()));
    }

    /// A closed client sends nothing.
    #[test]
    fn closed_client_fails_as_not_sent() {
        let client = client();
        client.close();
        client.close();
        let outcome = client.with_client(|_| Ok(()));
        let not_sent = CallError::NotSent("the client was closed".into());
        assert_eq!(outcome, Err(not_sent));
    }
}
