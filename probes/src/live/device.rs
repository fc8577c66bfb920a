//! This machine's microphone and speaker. The only file that knows the sound library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use cpal::traits::{DeviceTrait as _, HostTrait as _, StreamTrait as _};
use cpal::{
    BufferSize, Device, Error, ErrorKind, FromSample, Host, I24, SampleFormat, SizedSample, Stream, StreamConfig,
    SupportedBufferSize, SupportedStreamConfig, U24,
};

use crate::live::microphone::{Source, microphone};
use crate::live::speaker::{Speaker, speaker};
use crate::live::{Change, Choice, DeviceError, Sound};

/// Opens the devices, and keeps looking for them while the call lasts.
///
/// # Errors
/// When one of them does not open.
pub fn open(choice: &Choice) -> Result<Sound, DeviceError> {
    let (changes, changed) = mpsc::channel();
    let (in_use, over) = mpsc::channel();
    let (opened, first) = mpsc::channel();
    let mut keeper =
        Keeper { choice: choice.clone(), origin: Instant::now(), changes, microphone: None, speaker: None };
    let sound = Sound::new(changed, in_use, keeper.origin);
    // Some systems' streams stay on the thread they were opened on; it ends, and gives them back, with the call.
    let thread = std::thread::Builder::new().name("sound devices".into()).spawn(move || {
        let both = keeper
            .open_microphone()
            .map_err(|error| DeviceError::Microphone(error.to_string()))
            .and_then(|()| keeper.open_speaker().map_err(|error| DeviceError::Speaker(error.to_string())));
        let well = both.is_ok();
        if opened.send(both).is_ok() && well {
            keeper.keep(&over);
        }
    });
    thread.map_err(|error| DeviceError::Microphone(error.to_string()))?;
    let first = first.recv_timeout(OPENS_WITHIN);
    first.unwrap_or_else(|_| Err(DeviceError::Microphone("the sound system does not answer".into())))?;
    Ok(sound)
}

/// The sound devices of this machine, for people.
///
/// # Errors
/// When the system does not list them.
pub fn list() -> Result<String, DeviceError> {
    let host = cpal::default_host();
    let devices: Vec<_> = host.devices().map_err(|error| DeviceError::List(error.to_string()))?.collect();
    let lines = |title: &str, wanted: fn(&Device) -> bool, default: Option<Device>| {
        let mut names: Vec<_> = devices.iter().filter(|device| wanted(device)).filter_map(names).collect();
        names.dedup();
        let default = default.as_ref().and_then(names_of_default);
        let lines = names.iter().map(|(name, description)| {
            let mark = if default.as_ref() == Some(name) { '*' } else { ' ' };
            format!("{mark} {name}  ({description})\n")
        });
        let lines: String = lines.collect();
        format!("{title}\n{}", if lines.is_empty() { "  none\n" } else { &lines })
    };
    Ok(format!(
        "{}{}* the default",
        lines("microphones", Device::supports_input, host.default_input_device()),
        lines("speakers", Device::supports_output, host.default_output_device()),
    ))
}

fn names(device: &Device) -> Option<(String, String)> {
    let description = device.description().map_or_else(|_| String::new(), |description| description.name().to_owned());
    Some((device.id().ok()?.id().to_owned(), description))
}

fn names_of_default(device: &Device) -> Option<String> {
    names(device).map(|(name, _)| name)
}

/// Holds the devices of one call on a thread of its own.
struct Keeper {
    choice: Choice,
    origin: Instant,
    changes: mpsc::Sender<Change>,
    microphone: Option<Held>,
    speaker: Option<Held>,
}

/// A running stream.
struct Held {
    _stream: Stream,
    health: Arc<Health>,
    calls: u64,
    called_at: Instant,
    errors: u64,
}

/// What the callbacks say about a stream.
#[derive(Default)]
struct Health {
    calls: AtomicU64,
    errors: AtomicU64,
    /// The device says itself that it is gone.
    broken: AtomicBool,
}

impl Keeper {
    /// Looks after the devices until the call is over.
    fn keep(&mut self, over: &mpsc::Receiver<()>) {
        while over.recv_timeout(LOOKS) == Err(RecvTimeoutError::Timeout) {
            if !self.microphone.as_mut().is_some_and(Held::lives) {
                if self.microphone.take().is_some() {
                    let _ = self.changes.send(Change::Microphone(None));
                }
                self.log("microphone", Self::open_microphone);
            }
            if !self.speaker.as_mut().is_some_and(Held::lives) {
                if self.speaker.take().is_some() {
                    let _ = self.changes.send(Change::Speaker(None));
                }
                self.log("speaker", Self::open_speaker);
            }
        }
    }

    fn log(&mut self, name: &str, open: fn(&mut Self) -> Result<(), Error>) {
        if let Err(error) = open(self) {
            tracing::debug!("no {name} yet: {error}");
        }
    }

    fn open_microphone(&mut self) -> Result<(), Error> {
        let host = cpal::default_host();
        let device = match &self.choice.microphone {
            Some(name) => named(&host, name, Device::supports_input),
            None => host.default_input_device(),
        };
        let device = device.ok_or(ErrorKind::DeviceNotAvailable)?;
        let config = device.default_input_config()?;
        let (held, source) = with_small_blocks(&config, |stream| capture(&device, config.sample_format(), stream))?;
        self.microphone = Some(held);
        let _ = self.changes.send(Change::Microphone(Some(source)));
        Ok(())
    }

    fn open_speaker(&mut self) -> Result<(), Error> {
        let host = cpal::default_host();
        let device = match &self.choice.speaker {
            Some(name) => named(&host, name, Device::supports_output),
            None => host.default_output_device(),
        };
        let device = device.ok_or(ErrorKind::DeviceNotAvailable)?;
        let config = device.default_output_config()?;
        let origin = self.origin;
        let (held, speaker) =
            with_small_blocks(&config, |stream| render(&device, config.sample_format(), stream, origin))?;
        self.speaker = Some(held);
        let _ = self.changes.send(Change::Speaker(Some(Box::new(speaker))));
        Ok(())
    }
}

impl Held {
    fn new(stream: Stream, health: Arc<Health>) -> Result<Self, Error> {
        stream.play()?;
        Ok(Self { _stream: stream, health, calls: 0, called_at: Instant::now(), errors: 0 })
    }

    /// Whether its callbacks still come. A device can vanish without a word, or with one error after the other.
    fn lives(&mut self) -> bool {
        let (calls, errors) = (self.health.calls.load(Ordering::Relaxed), self.health.errors.load(Ordering::Relaxed));
        let fails = calls == self.calls && errors != self.errors;
        if calls != self.calls {
            self.called_at = Instant::now();
        }
        (self.calls, self.errors) = (calls, errors);
        !fails && !self.health.broken.load(Ordering::Relaxed) && self.called_at.elapsed() < SILENT_FOR
    }
}

fn named(host: &Host, name: &str, wanted: fn(&Device) -> bool) -> Option<Device> {
    let mut devices = host.devices().ok()?;
    devices.find(|device| {
        wanted(device) && names(device).is_some_and(|(id, description)| id == name || description == name)
    })
}

/// Opens a stream with blocks of 10 ms, or with what the device likes where it does not take that.
fn with_small_blocks<T>(
    config: &SupportedStreamConfig,
    open: impl Fn(StreamConfig) -> Result<T, Error>,
) -> Result<T, Error> {
    let wanted = config.sample_rate() / BLOCKS_PER_SECOND;
    let wanted = match config.buffer_size() {
        SupportedBufferSize::Range { min, max } => wanted.clamp(*min, *max),
        SupportedBufferSize::Unknown => wanted,
    };
    open(StreamConfig { buffer_size: BufferSize::Fixed(wanted), ..config.config() })
        .or_else(|_| open(StreamConfig { buffer_size: BufferSize::Default, ..config.config() }))
}

fn capture(device: &Device, format: SampleFormat, config: StreamConfig) -> Result<(Held, Source), Error> {
    match format {
        SampleFormat::I8 => capture_as::<i8>(device, config),
        SampleFormat::I16 => capture_as::<i16>(device, config),
        SampleFormat::I24 => capture_as::<I24>(device, config),
        SampleFormat::I32 => capture_as::<i32>(device, config),
        SampleFormat::I64 => capture_as::<i64>(device, config),
        SampleFormat::U8 => capture_as::<u8>(device, config),
        SampleFormat::U16 => capture_as::<u16>(device, config),
        SampleFormat::U24 => capture_as::<U24>(device, config),
        SampleFormat::U32 => capture_as::<u32>(device, config),
        SampleFormat::U64 => capture_as::<u64>(device, config),
        SampleFormat::F32 => capture_as::<f32>(device, config),
        SampleFormat::F64 => capture_as::<f64>(device, config),
        _ => Err(ErrorKind::UnsupportedConfig.into()),
    }
}

fn capture_as<T>(device: &Device, config: StreamConfig) -> Result<(Held, Source), Error>
where
    T: SizedSample,
    i16: FromSample<T>,
{
    let (mut capture, source) = microphone(config.sample_rate, config.channels);
    let health = Arc::new(Health::default());
    let alive = Arc::clone(&health);
    let stream = device.build_input_stream(
        config,
        move |block: &[T], _| {
            alive.calls.fetch_add(1, Ordering::Relaxed);
            capture.captured(block, |sample| <i16 as FromSample<T>>::from_sample_(sample));
        },
        on_error(&health),
        None,
    )?;
    Ok((Held::new(stream, health)?, source))
}

fn render(
    device: &Device,
    format: SampleFormat,
    config: StreamConfig,
    origin: Instant,
) -> Result<(Held, Speaker), Error> {
    match format {
        SampleFormat::I8 => render_as::<i8>(device, config, origin),
        SampleFormat::I16 => render_as::<i16>(device, config, origin),
        SampleFormat::I24 => render_as::<I24>(device, config, origin),
        SampleFormat::I32 => render_as::<i32>(device, config, origin),
        SampleFormat::I64 => render_as::<i64>(device, config, origin),
        SampleFormat::U8 => render_as::<u8>(device, config, origin),
        SampleFormat::U16 => render_as::<u16>(device, config, origin),
        SampleFormat::U24 => render_as::<U24>(device, config, origin),
        SampleFormat::U32 => render_as::<u32>(device, config, origin),
        SampleFormat::U64 => render_as::<u64>(device, config, origin),
        SampleFormat::F32 => render_as::<f32>(device, config, origin),
        SampleFormat::F64 => render_as::<f64>(device, config, origin),
        _ => Err(ErrorKind::UnsupportedConfig.into()),
    }
}

fn render_as<T>(device: &Device, config: StreamConfig, origin: Instant) -> Result<(Held, Speaker), Error>
where
    T: SizedSample + FromSample<i16>,
{
    let (mut render, speaker) = speaker(config.sample_rate, config.channels)
        .map_err(|error| Error::with_message(ErrorKind::UnsupportedConfig, error.to_string()))?;
    let health = Arc::new(Health::default());
    let alive = Arc::clone(&health);
    let stream = device.build_output_stream(
        config,
        move |block: &mut [T], info| {
            alive.calls.fetch_add(1, Ordering::Relaxed);
            let times = info.timestamp();
            let delay = times.playback.saturating_duration_since(times.callback);
            render.fill(origin.elapsed() + delay, block, T::from_sample_);
        },
        on_error(&health),
        None,
    )?;
    Ok((Held::new(stream, health)?, speaker))
}

/// After many an error a stream goes on (ALSA's plugin for PulseAudio begins with some): it shows in the calls.
fn on_error(health: &Arc<Health>) -> impl FnMut(Error) + Send + 'static {
    let health = Arc::clone(health);
    move |error| {
        health.errors.fetch_add(1, Ordering::Relaxed);
        if matches!(error.kind(), ErrorKind::DeviceNotAvailable | ErrorKind::StreamInvalidated) {
            health.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Blocks of 10 ms: shorter ones a busy machine misses, longer ones are delay.
const BLOCKS_PER_SECOND: u32 = 100;
/// A sound system that is there opens its devices within this time.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// How often the devices are looked after, and looked for.
const LOOKS: Duration = Duration::from_millis(500);
/// A stream whose callbacks stay away for so long is gone. PulseAudio's can take 2 s to begin.
const SILENT_FOR: Duration = Duration::from_secs(4);
