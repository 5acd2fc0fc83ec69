//! The wait of batches under each flush rule, before servers that report their utilization and
//! before others.

use crate::world::World;
use respool_engine::settings::{Aim, Settings};
use respool_engine::{Event, LinkId, Origin, ServerCpu, SessionId, Time, Usage, WorkerReport};

const MAX_DELAY_US: u32 = 5_000;
const REFUSED: &str = "-NOPERM this user has no permissions to run the 'info' command\r\n";

fn balanced() -> Settings {
    let mut settings = crate::world::settings();
    settings.flush.aim = Aim::Balanced;
    settings.flush.max_delay_us = MAX_DELAY_US;
    settings
}

/// A server that gets a thousand requests a second, and its answers to INFO.
struct Scene {
    world: World,
    session: SessionId,
    link: LinkId,
    /// Processor time that the server has used, seconds.
    cpu_s: f64,
    /// Another answer to INFO cpu.
    says: Option<String>,
    questions: usize,
    /// Replies that the server has not sent.
    owed: usize,
    /// Processor time that the worker has used, microseconds.
    used_us: f64,
}

impl Scene {
    fn new(settings: Settings) -> Scene {
        let mut world = World::new(settings);
        let (session, link) = (world.accept(), world.shared);
        Scene {
            world,
            session,
            link,
            cpu_s: 0.0,
            says: None,
            questions: 0,
            owed: 0,
            used_us: 0.0,
        }
    }

    /// Runs seconds in which a client sends requests again and again, and server and worker are
    /// busy for these shares of the time.
    fn run(&mut self, seconds: u64, server: f64, worker: f64) {
        let until = Time(self.world.now.0 + seconds * 1_000_000);
        while self.world.now < until {
            let before = self.world.now;
            self.world.asks(self.session, &["INCR k"]);
            self.answer();
            // Ticks meet each part of this period.
            for _ in 0..self.world.now.0 / 1_000 % 3 {
                self.world.turn(|_| {});
            }
            let us = self.world.now.since_us(before) as f64;
            self.cpu_s += server * us / 1e6;
            self.used_us += worker * us;
            self.world.usage = Some(Usage {
                ran_us: self.used_us as u64,
                waited_us: 0,
            });
        }
        self.world.usage = None;
        // Waiting batches leave.
        for _ in 0..10 {
            self.world.turn(|_| {});
            self.answer();
        }
    }

    /// The server answers all its requests.
    fn answer(&mut self) {
        let owed = ":1\r\n".repeat(std::mem::take(&mut self.owed));
        if !owed.is_empty() {
            self.world.says(self.link, owed);
        }
        for asked in self.world.asked(self.link) {
            let reply = self.reply_to(&asked);
            self.world.says(self.link, reply);
        }
        self.world.got(self.session);
    }

    fn reply_to(&mut self, asked: &[String]) -> String {
        let words: Vec<&str> = asked.iter().map(String::as_str).collect();
        match words[..] {
            ["INFO", "cpu"] => {
                self.questions += 1;
                self.says.clone().unwrap_or_else(|| {
                    let text = format!(
                        "# CPU\r\nused_cpu_sys:77.5\r\nused_cpu_user:88.5\r\n\
                         used_cpu_sys_main_thread:{:.6}\r\nused_cpu_user_main_thread:1.000000\r\n",
                        self.cpu_s
                    );
                    format!("${}\r\n{text}\r\n", text.len())
                })
            }
            ["INFO", ..] => "$0\r\n\r\n".into(),
            _ => ":1\r\n".into(),
        }
    }

    /// The server answers all its requests but the last.
    fn late(&mut self) {
        self.owed += self.world.asked(self.link).len();
        if self.owed > 1 {
            let replies = ":1\r\n".repeat(self.owed - 1);
            self.owed = 1;
            self.world.says(self.link, replies);
        }
        self.world.got(self.session);
    }

    /// Number of turns for which a request waits for a reply that does not come, up to ten.
    fn turns_waited(&mut self, first: SessionId, second: SessionId) -> usize {
        self.world.asks(first, &["INCR a"]);
        // The link may still expect sessions that it has just answered.
        for _ in 0..10 {
            self.world.turn(|_| {});
        }
        // INFO cpu may be among these requests.
        let mut asked = self.world.asked(self.link);
        let has = |asked: &[Vec<String>], key: &str| asked.iter().any(|words| words[1] == key);
        assert!(has(&asked, "a"), "no request is in flight");
        self.world.asks(second, &["INCR b"]);
        let mut turns = 0;
        loop {
            asked.extend(self.world.asked(self.link));
            if has(&asked, "b") || turns == 10 {
                break;
            }
            self.world.turn(|_| {});
            turns += 1;
        }
        for asked in asked {
            let reply = self.reply_to(&asked);
            self.world.says(self.link, reply);
        }
        self.world.got(first);
        self.world.got(second);
        turns
    }

    fn waits(&mut self) -> usize {
        let [first, second] = [(); 2].map(|()| self.world.accept());
        self.turns_waited(first, second)
    }

    /// A field of the server's line in INFO.
    fn shown(&mut self, name: &str) -> String {
        let asks = self.world.accept();
        self.world.asks(asks, &["INFO respool"]);
        // The server is first asked for its sections.
        for _ in 0..10 {
            self.world.turn(|_| {});
            self.answer();
        }
        let info = self.world.got(asks);
        let line = info
            .lines()
            .find(|line| line.starts_with("respool_server_0:"));
        let line = line.unwrap_or_else(|| panic!("no line in {info:?}"));
        let field = line
            .split(',')
            .find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field
            .unwrap_or_else(|| panic!("no {name} in {line}"))
            .to_owned()
    }

    fn told(&mut self) -> Vec<String> {
        let events = std::mem::take(&mut self.world.events);
        let text = |event| match event {
            Event::Topology { text, .. } if text.contains("INFO cpu of") => Some(text),
            _ => None,
        };
        events.into_iter().filter_map(text).collect()
    }
}

/// A link with replies in flight holds no batch while server and worker have room.
#[test]
fn nothing_waits_while_server_and_worker_have_room() {
    let mut scene = Scene::new(balanced());
    scene.run(3, 0.3, 0.3);
    assert!((13..=16).contains(&scene.questions), "{}", scene.questions);
    assert_eq!(scene.waits(), 0);
    assert_eq!(scene.shown("wait_reason"), "cpu-free");
    assert_eq!(scene.shown("utilization"), "0.30");
}

/// The wait ends when the server has room again.
#[test]
fn batches_wait_for_a_busy_server() {
    let mut scene = Scene::new(balanced());
    scene.run(4, 0.9, 0.1);
    assert_eq!(scene.waits(), 5);
    assert_eq!(scene.shown("wait_reason"), "server-busy");
    assert_eq!(scene.shown("wait_us"), MAX_DELAY_US.to_string());
    scene.run(4, 0.1, 0.1);
    assert_eq!(scene.waits(), 0, "the server has room again");
}

/// From no load to a server without room: the wait is the longest 2 s later.
#[test]
fn wait_settles_in_two_seconds() {
    let mut scene = Scene::new(balanced());
    scene.world.wait_ms(3_000);
    scene.run(2, 0.9, 0.1);
    assert_eq!(scene.shown("wait_us"), MAX_DELAY_US.to_string());
}

/// A slow command that delays one answer does not change the wait.
#[test]
fn late_answer_ends_no_wait() {
    let mut scene = Scene::new(balanced());
    scene.run(4, 0.9, 0.1);
    let mut asked: Vec<Vec<String>> = Vec::new();
    while !asked.iter().any(|words| words[1] == "cpu") {
        scene.world.turn(|_| {});
        asked.extend(scene.world.asked(scene.link));
    }
    for _ in 0..700 {
        scene.world.asks(scene.session, &["INCR k"]);
        asked.extend(scene.world.asked(scene.link));
    }
    scene.cpu_s += 0.7;
    let replies = asked.iter().map(|words| scene.reply_to(words));
    let replies: String = replies.collect();
    scene.world.says(scene.link, replies);
    assert_eq!(scene.waits(), 5);
    scene.run(1, 0.9, 0.1);
    assert_eq!(scene.waits(), 5);
}

/// A server with room does not change the wait.
#[test]
fn batches_wait_for_a_busy_worker() {
    let mut scene = Scene::new(balanced());
    scene.run(4, 0.1, 0.97);
    assert_eq!(scene.waits(), 5);
    assert_eq!(scene.shown("wait_reason"), "worker-busy");
}

/// The question itself is no load: a lone client does not wait for its answer, and no second
/// question follows.
#[test]
fn lone_caller_does_not_wait_for_the_question() {
    for silent_ms in [0, 2_000] {
        let mut scene = Scene::new(balanced());
        scene.run(4, 0.9, 0.1);
        let lone = scene.world.accept();
        let mut questions = 0;
        let mut ask_on = |scene: &mut Scene, until: &dyn Fn(usize, u32) -> bool| {
            for ms in 0.. {
                if until(questions, ms) {
                    break;
                }
                scene.world.turn(|_| {});
                let asked = scene.world.asked(scene.link);
                questions += asked.iter().filter(|asked| asked[1] == "cpu").count();
            }
        };
        ask_on(&mut scene, &|questions, _| questions > 0);
        ask_on(&mut scene, &|_, ms| ms >= silent_ms);
        assert_eq!(questions, 1, "the server is not asked again");
        scene.world.asks(lone, &["INCR lone"]);
        assert!(scene.world.sent(scene.link).contains("lone"));
        if silent_ms == 0 {
            // The answers come, and batches still wait for a reply.
            scene.cpu_s += 0.2;
            let text = format!("used_cpu_sys:{}\r\nused_cpu_user:1.0\r\n", scene.cpu_s);
            let cpu = format!("${}\r\n{text}\r\n:1\r\n", text.len());
            scene.world.says(scene.link, cpu);
            scene.world.got(lone);
            assert_ne!(scene.waits(), 0);
        }
    }
}

/// An error of a server that loads, or that runs a script, is no refusal, and waits stay as they
/// are.
#[test]
fn server_that_is_busy_for_a_moment_is_asked_again() {
    for says in ["-LOADING it is\r\n", "-BUSY running a script\r\n"] {
        let mut scene = Scene::new(balanced());
        scene.run(4, 0.9, 0.1);
        assert_eq!(scene.waits(), 5);
        scene.says = Some(says.into());
        scene.run(2, 0.9, 0.1);
        assert_eq!(scene.waits(), 5);
        scene.says = None;
        scene.run(4, 0.1, 0.1);
        assert_eq!(scene.waits(), 0);
        assert!(scene.told().is_empty());
    }
}

/// A rule that is set while a question is in flight uses its answer.
#[test]
fn rule_may_be_set_while_a_question_is_under_way() {
    let mut scene = Scene::new(balanced());
    scene.run(2, 0.3, 0.1);
    scene.questions = 0;
    let mut asked = Vec::new();
    while !asked.iter().any(|asked: &Vec<String>| asked[1] == "cpu") {
        scene.world.turn(|_| {});
        asked = scene.world.asked(scene.link);
    }
    let sets = scene.world.accept();
    scene
        .world
        .asks(sets, &["CONFIG SET respool.max-delay-us 4000"]);
    scene.world.wait_ms(50);
    let asked = scene.world.sent(scene.link);
    assert!(!asked.contains("cpu"), "the question is under way: {asked}");
    scene.world.says(scene.link, REFUSED);
    scene.world.says(scene.link, "-ERR Unknown option\r\n");
    assert_eq!(scene.world.got(sets), "+OK\r\n");
    assert_eq!(scene.told().len(), 1, "the refusal is that of the question");
}

/// The CPU time of a restarted server begins at zero, which is no nonsense.
#[test]
fn server_that_was_restarted_is_asked_on() {
    let mut scene = Scene::new(balanced());
    scene.run(2, 0.9, 0.1);
    assert_eq!(scene.shown("wait_reason"), "server-busy");
    for _ in 0..10 {
        scene.world.lose(scene.link);
        scene.link = scene.world.connect();
        scene.cpu_s = 0.0;
        scene.run(4, 0.3, 0.1);
        assert_eq!(scene.shown("utilization"), "0.30");
        assert_eq!(scene.shown("wait_reason"), "cpu-free");
    }
    assert!(scene.told().is_empty());
}

/// With few requests, or with a fixed rule, no figures are needed.
#[test]
fn server_is_not_asked_without_need() {
    let mut settings = balanced();
    // A wait would gather a tenth of a request.
    settings.flush.max_delay_us = 100;
    let mut scene = Scene::new(settings);
    scene.run(3, 0.9, 0.1);
    assert_eq!(scene.questions, 0);
    assert_eq!(scene.waits(), 0);
    assert_eq!(scene.shown("wait_reason"), "few-requests");

    for (aim, waits) in [(Aim::Latency, 0), (Aim::ServerCpu, 5)] {
        let mut settings = balanced();
        settings.flush.aim = aim;
        let mut scene = Scene::new(settings);
        scene.run(3, 0.9, 0.9);
        assert_eq!(scene.questions, 0);
        assert_eq!(scene.waits(), waits, "{aim:?}");
        assert_eq!(scene.shown("wait_reason"), "flush-rule");
    }
}

/// The log names the server, and the occupancy of its links counts instead.
#[test]
fn server_that_does_not_tell_is_named_once() {
    for says in [
        REFUSED,
        "$0\r\n\r\n",
        "*0\r\n",
        "$33\r\nused_cpu_sys:x\r\nused_cpu_user:1\r\n\r\n",
    ] {
        let mut scene = Scene::new(balanced());
        scene.says = Some(says.into());
        scene.run(3, 0.9, 0.1);
        assert_eq!(scene.questions, 1, "the server is not asked again at once");
        let told = scene.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].contains("grant +info"), says == REFUSED, "{told:?}");
        assert_eq!(
            scene.waits(),
            0,
            "the links owe no reply for most of the time"
        );
        assert_eq!(scene.shown("utilization"), "-1");
        // The replies take long now: there is always a batch in flight.
        for _ in 0..4_000 {
            scene.world.asks(scene.session, &["INCR k"]);
            scene.late();
        }
        assert_eq!(scene.shown("wait_reason"), "links-busy");
        // After a minute it is asked again, and the log has named it.
        scene.world.wait_ms(60_000);
        scene.run(2, 0.9, 0.1);
        assert_eq!(scene.questions, 2);
        assert!(scene.told().is_empty(), "once is enough");
    }
}

/// A batch leaves when its least patient session wants it.
#[test]
fn aim_of_a_listener_replaces_that_of_its_pool() {
    let mut settings = balanced();
    settings.flush.aim = Aim::ServerCpu;
    let mut scene = Scene::new(settings);
    let link = scene.link;
    let set = |scene: &mut Scene, session, option: &str| {
        scene
            .world
            .asks(session, &[&format!("CONFIG SET respool.{option}")]);
        scene.world.wait_ms(50);
        scene.world.sent(link);
        scene.world.says(link, "-ERR Unknown option\r\n");
        assert_eq!(scene.world.got(session), "+OK\r\n", "{option}");
    };
    let mut from = |listener| {
        let origin = Origin {
            listener,
            ..Origin::from(crate::world::peer(1))
        };
        scene.world.engine.handle_accept(origin, 0)
    };
    let [one, other] = [from(0), from(1)];
    set(&mut scene, other, "listener.flush-rule latency");
    assert_eq!(scene.turns_waited(one, one), 5);
    assert_eq!(scene.turns_waited(one, other), 0);
    set(&mut scene, other, "flush-rule latency");
    set(&mut scene, other, "listener.flush-rule server-cpu");
    assert_eq!(
        scene.turns_waited(one, other),
        5,
        "the listener is more patient than its pool"
    );
    assert_eq!(scene.turns_waited(other, one), 0);
    set(&mut scene, other, "listener.flush-rule pool");
    assert_eq!(scene.turns_waited(one, other), 0);
}

/// For metrics, a server is asked for its processor time every 5 s, without any load and under any
/// rule. One that refuses is left alone for a minute.
#[test]
fn server_is_asked_for_metrics() {
    let mut settings = crate::world::settings();
    settings.asks_server_cpu = true;
    let mut world = World::new(settings);
    let link = world.shared;
    let cpu_of = |world: &World| {
        let mut report = WorkerReport::default();
        world.engine.report(&mut report);
        report.servers[0].cpu.map(|(_, cpu)| cpu)
    };
    let questions = |world: &mut World, ms: u32| {
        world.wait_ms(ms);
        world.sent(link).matches("cpu").count()
    };
    assert_eq!(questions(&mut world, 100), 1);
    assert_eq!(cpu_of(&world), None);
    let text = "used_cpu_sys_main_thread:1.5\r\nused_cpu_user_main_thread:2.25\r\n";
    world.says(link, format!("${}\r\n{text}\r\n", text.len()));
    let cpu = ServerCpu {
        user_s: 2.25,
        system_s: 1.5,
    };
    assert_eq!(cpu_of(&world), Some(cpu));
    assert_eq!(questions(&mut world, 4_900), 0);
    assert_eq!(questions(&mut world, 200), 1);
    world.says(link, "-LOADING Redis is loading the dataset in memory\r\n");
    assert_eq!(questions(&mut world, 5_100), 1);
    world.says(link, REFUSED);
    assert_eq!(cpu_of(&world), Some(cpu));
    assert_eq!(questions(&mut world, 59_000), 0);
    assert_eq!(questions(&mut world, 1_500), 1);
}
