//! The streams of a connection: those that this side asked, and those that it answers. Each in its place, found without a search.

use larder_types::wire::Malformed;

use super::frame::{Last, StreamId};

/// What this side asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    places: Vec<(u32, Option<AskedStream>)>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct AskedStream {
    /// Where its requests end among the bytes of the connection.
    end: u64,
    /// Nobody waits for it.
    is_cancelled: bool,
    /// Pieces that were not taken yet.
    pieces: u32,
}

impl Asked {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The next stream, before it is known where its requests end.
    pub fn open(&mut self) -> StreamId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            u32::try_from(self.places.len() - 1).expect("few streams")
        });
        let (turn, stream) = &mut self.places[place as usize];
        *turn = turn.wrapping_add(1);
        *stream = Some(AskedStream {
            end: u64::MAX,
            is_cancelled: false,
            pieces: 0,
        });
        StreamId { place, turn: *turn }
    }

    fn get(&mut self, id: StreamId) -> Option<&mut AskedStream> {
        match self.places.get_mut(id.place as usize) {
            Some((turn, stream)) if *turn == id.turn => stream.as_mut(),
            _ => None,
        }
    }

    pub fn set_end(&mut self, id: StreamId, end: u64) {
        self.get(id).expect("just opened").end = end;
    }

    /// A piece came: says whether somebody waits for it.
    ///
    /// # Errors
    /// There is no such stream, or too many pieces are on their way.
    pub fn heard(&mut self, id: StreamId, last: Last, pieces_max: u32) -> Result<bool, Malformed> {
        let unknown = Malformed("an answer is to nothing that was asked, or comes after its end");
        let stream = self.get(id).ok_or(unknown)?;
        // A reason why there is no more needs no room.
        stream.pieces += u32::from(matches!(last, Last::No | Last::Whole));
        if stream.pieces > pieces_max && !stream.is_cancelled {
            return Err(Malformed(
                "more pieces of an answer came than may be on their way",
            ));
        }
        let is_wanted = !stream.is_cancelled;
        if last != Last::No {
            self.places[id.place as usize].1 = None;
            self.free.push(id.place);
        }
        Ok(is_wanted)
    }

    /// A piece was taken: says whether the stream is still there, so that the other is to hear of it.
    pub fn taken(&mut self, id: StreamId) -> bool {
        let stream = self.get(id).filter(|stream| stream.pieces > 0);
        stream.map(|stream| stream.pieces -= 1).is_some()
    }

    /// Says whether it was there, and wanted.
    pub fn cancel(&mut self, id: StreamId) -> bool {
        let stream = self.get(id).filter(|stream| !stream.is_cancelled);
        stream.map(|stream| stream.is_cancelled = true).is_some()
    }

    /// At the end of the connection: those that somebody waits for, as not sent and as unknown.
    pub fn end(&mut self, written: u64) -> (Vec<StreamId>, Vec<StreamId>) {
        let (mut unsent, mut unknown) = (Vec::new(), Vec::new());
        for (place, (turn, stream)) in self.places.drain(..).enumerate() {
            let Some(stream) = stream.filter(|stream| !stream.is_cancelled) else {
                continue;
            };
            let place = u32::try_from(place).expect("few streams");
            match stream.end > written {
                true => unsent.push(StreamId { place, turn }),
                false => unknown.push(StreamId { place, turn }),
            }
        }
        self.free.clear();
        (unsent, unknown)
    }
}

/// What this side answers.
#[derive(Debug, Default)]
pub(super) struct Answered {
    places: Vec<Option<AnsweredStream>>,
    open: usize,
}

#[derive(Debug)]
struct AnsweredStream {
    turn: u32,
    /// Pieces that were sent and not taken.
    pieces: u32,
}

impl Answered {
    /// Requests came.
    ///
    /// # Errors
    /// The place is taken, or there are too many.
    pub fn open(&mut self, id: StreamId, streams_max: u32) -> Result<(), Malformed> {
        if id.place >= streams_max {
            return Err(Malformed("more streams are open than may be"));
        }
        let place = id.place as usize;
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if self.places[place].is_some() {
            return Err(Malformed(
                "a stream is opened where another is not answered",
            ));
        }
        let turn = id.turn;
        self.places[place] = Some(AnsweredStream { turn, pieces: 0 });
        self.open += 1;
        Ok(())
    }

    fn get(&mut self, id: StreamId) -> Option<&mut AnsweredStream> {
        let stream = self.places.get_mut(id.place as usize)?.as_mut();
        stream.filter(|stream| stream.turn == id.turn)
    }

    /// How many pieces may be sent now; none if it is not to be answered any more.
    pub fn room(&mut self, id: StreamId, pieces_max: u32) -> Option<u32> {
        let stream = self.get(id)?;
        Some(pieces_max.saturating_sub(stream.pieces))
    }

    /// A piece is sent.
    pub fn send(&mut self, id: StreamId, last: Last) {
        if last == Last::No {
            self.get(id).expect("there is room").pieces += 1;
        } else {
            self.close(id);
        }
    }

    /// The other took a piece: says whether there was no room before.
    ///
    /// # Errors
    /// None was on its way.
    pub fn taken(&mut self, id: StreamId, pieces_max: u32) -> Result<bool, Malformed> {
        match self.get(id) {
            // It was answered to its end meanwhile.
            None => Ok(false),
            Some(stream) if stream.pieces == 0 => {
                Err(Malformed("a piece was taken that was not sent"))
            }
            Some(stream) => {
                stream.pieces -= 1;
                Ok(stream.pieces + 1 == pieces_max)
            }
        }
    }

    /// Says whether it was there.
    pub fn close(&mut self, id: StreamId) -> bool {
        let is_open = self.get(id).is_some();
        if is_open {
            self.places[id.place as usize] = None;
            self.open -= 1;
        }
        is_open
    }

    pub fn clear(&mut self) {
        *self = Answered::default();
    }
}
