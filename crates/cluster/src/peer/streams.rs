//! The streams of a connection: those that this side requested, and those that it answers. Each is found by its place, without a
//! search.

use larder_types::wire::Malformed;

use super::frame::{PieceStatus, StreamId};

/// The streams that this side requested.
#[derive(Debug, Default)]
pub(super) struct OutgoingStreams {
    places: Vec<(u32, Option<OutgoingStream>)>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct OutgoingStream {
    /// The position of the end of its requests in the connection's bytes.
    end: u64,
    /// The requester no longer waits for it.
    is_cancelled: bool,
    /// Unacknowledged pieces.
    pieces: u32,
}

impl OutgoingStreams {
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Opens a stream, before the end of its requests is known.
    pub fn open(&mut self) -> StreamId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            u32::try_from(self.places.len() - 1).expect("the number of streams fits into u32")
        });
        let (turn, stream) = &mut self.places[place as usize];
        *turn = turn.wrapping_add(1);
        *stream = Some(OutgoingStream {
            end: u64::MAX,
            is_cancelled: false,
            pieces: 0,
        });
        StreamId { place, turn: *turn }
    }

    fn get(&mut self, id: StreamId) -> Option<&mut OutgoingStream> {
        match self.places.get_mut(id.place as usize) {
            Some((turn, stream)) if *turn == id.turn => stream.as_mut(),
            _ => None,
        }
    }

    pub fn set_end(&mut self, id: StreamId, end: u64) {
        self.get(id).expect("just opened").end = end;
    }

    /// Handles a piece of a response. Returns whether the requester waits for it.
    ///
    /// # Errors
    /// There is no such stream, or too many pieces are in flight.
    pub fn receive_piece(
        &mut self,
        id: StreamId,
        last: PieceStatus,
        pieces_max: u32,
    ) -> Result<bool, Malformed> {
        let unknown = Malformed("a reply has no open stream");
        let stream = self.get(id).ok_or(unknown)?;
        // A final reason does not count towards the limit.
        stream.pieces += u32::from(matches!(last, PieceStatus::Partial | PieceStatus::Complete));
        if stream.pieces > pieces_max && !stream.is_cancelled {
            return Err(Malformed(
                "more pieces of a reply are in flight than allowed",
            ));
        }
        let is_wanted = !stream.is_cancelled;
        if last != PieceStatus::Partial {
            self.places[id.place as usize].1 = None;
            self.free.push(id.place);
        }
        Ok(is_wanted)
    }

    /// Handles the acknowledgement of a piece. Returns whether the stream still exists, so that the peer must be notified.
    pub fn acknowledge_piece(&mut self, id: StreamId) -> bool {
        let stream = self.get(id).filter(|stream| stream.pieces > 0);
        stream.map(|stream| stream.pieces -= 1).is_some()
    }

    /// Cancels a stream. Returns whether it existed and was not cancelled yet.
    pub fn cancel(&mut self, id: StreamId) -> bool {
        let stream = self.get(id).filter(|stream| !stream.is_cancelled);
        stream.map(|stream| stream.is_cancelled = true).is_some()
    }

    /// Ends all streams with the connection. Returns those that are not cancelled, as unsent and as unknown.
    pub fn end(&mut self, written: u64) -> (Vec<StreamId>, Vec<StreamId>) {
        let (mut unsent, mut unknown) = (Vec::new(), Vec::new());
        for (place, (turn, stream)) in self.places.drain(..).enumerate() {
            let Some(stream) = stream.filter(|stream| !stream.is_cancelled) else {
                continue;
            };
            let place = u32::try_from(place).expect("the number of streams fits into u32");
            if stream.end > written {
                unsent.push(StreamId { place, turn })
            } else {
                unknown.push(StreamId { place, turn })
            }
        }
        self.free.clear();
        (unsent, unknown)
    }
}

/// The streams that this side answers.
#[derive(Debug, Default)]
pub(super) struct IncomingStreams {
    places: Vec<Option<IncomingStream>>,
    open: usize,
}

#[derive(Debug)]
struct IncomingStream {
    turn: u32,
    /// Pieces sent and not acknowledged.
    pieces: u32,
}

impl IncomingStreams {
    /// Handles new requests.
    ///
    /// # Errors
    /// The place is in use, or there are too many streams.
    pub fn open(&mut self, id: StreamId, streams_max: u32) -> Result<(), Malformed> {
        if id.place >= streams_max {
            return Err(Malformed("more streams are open than allowed"));
        }
        let place = id.place as usize;
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if self.places[place].is_some() {
            return Err(Malformed("a stream is opened in a place that is in use"));
        }
        let turn = id.turn;
        self.places[place] = Some(IncomingStream { turn, pieces: 0 });
        self.open += 1;
        Ok(())
    }

    fn get(&mut self, id: StreamId) -> Option<&mut IncomingStream> {
        let stream = self.places.get_mut(id.place as usize)?.as_mut();
        stream.filter(|stream| stream.turn == id.turn)
    }

    /// The number of pieces that may be sent now; `None` if the stream has ended.
    pub fn room(&mut self, id: StreamId, pieces_max: u32) -> Option<u32> {
        let stream = self.get(id)?;
        Some(pieces_max.saturating_sub(stream.pieces))
    }

    /// Records that a piece is sent.
    pub fn send(&mut self, id: StreamId, last: PieceStatus) {
        if last == PieceStatus::Partial {
            self.get(id)
                .expect("the caller checked that the stream is open")
                .pieces += 1;
        } else {
            self.close(id);
        }
    }

    /// Handles an acknowledgement. Returns whether the limit had been reached before.
    ///
    /// # Errors
    /// No piece was in flight.
    pub fn acknowledge_piece(&mut self, id: StreamId, pieces_max: u32) -> Result<bool, Malformed> {
        match self.get(id) {
            // The response was completed meanwhile.
            None => Ok(false),
            Some(stream) if stream.pieces == 0 => {
                Err(Malformed("an acknowledged piece was not sent"))
            }
            Some(stream) => {
                stream.pieces -= 1;
                Ok(stream.pieces + 1 == pieces_max)
            }
        }
    }

    /// Closes a stream. Returns whether it was open.
    pub fn close(&mut self, id: StreamId) -> bool {
        let is_open = self.get(id).is_some();
        if is_open {
            self.places[id.place as usize] = None;
            self.open -= 1;
        }
        is_open
    }

    pub fn clear(&mut self) {
        *self = IncomingStreams::default();
    }
}
