package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"sync/atomic"
	"time"
)

// watchRecord is what one watch came to.
type watchRecord struct {
	Kind          string `json:"kind"`  // "watch"
	Watch         int    `json:"watch"` // -1 is the reference
	Conn          int    `json:"conn"`
	Stuck         bool   `json:"stuck,omitempty"`
	Events        int    `json:"events"` // without bookmarks and the final ERROR
	Bookmarks     int    `json:"bookmarks"`
	InitialEvents int    `json:"initial_events,omitempty"`
	Bytes         int64  `json:"bytes"`
	FirstRV       uint64 `json:"first_rv"`
	LastRV        uint64 `json:"last_rv"`
	BookmarkRV    uint64 `json:"bookmark_rv,omitempty"`
	SHA256        string `json:"sha256"` // over the bytes of all events, in order
	Ended         string `json:"ended"`
	Detail        string `json:"detail,omitempty"`
	OpenedNS      int64  `json:"opened_ns,omitempty"`
	FirstFrameNS  int64  `json:"first_frame_ns,omitempty"`
	EndedNS       int64  `json:"ended_ns"`
}

// How a watch can end.
const (
	endedComplete   = "complete"    // the wanted resource version was reached
	endedPeriod     = "period"      // the time asked for was over
	endedEOF        = "eof"         // the server ended the response
	endedErrorEvent = "error-event" // the server sent an ERROR event
	endedHTTPError  = "http-error"  // no watch: another status than 200
	endedReadError  = "read-error"  // the connection or stream broke
	endedNotOpened  = "not-opened"  // no response at all
	endedTimeout    = "timeout"     // the driver gave up or was told to stop
)

// frameRecord is one frame of a verbose run.
type frameRecord struct {
	Kind   string `json:"kind"` // "frame"
	Watch  int    `json:"watch"`
	Seq    int    `json:"seq"` // events up to and including this one
	Type   string `json:"type"`
	RV     uint64 `json:"rv"`
	Key    string `json:"key,omitempty"`
	SHA256 string `json:"sha256"`
	Chain  string `json:"chain"` // the watch's SHA-256 up to and including this frame
	AtNS   int64  `json:"at_ns"`
}

// errComplete and errPeriod are why the driver itself ends a watch.
var (
	errComplete = errors.New(endedComplete)
	errPeriod   = errors.New(endedPeriod)
)

// watchState follows one watch. Only its own goroutine touches it, but for lastRV and
// cancel.
type watchState struct {
	record  watchRecord
	goal    *goal
	verbose *lines // nil unless every frame is to be written
	chained bool   // keep chain, to tell which prefixes this watch has

	hash    hash.Hash
	chain   []string // chain[n] is the hash of the first n events
	initial bool     // the events so far are not ordered by resource version
	lastRV  atomic.Uint64
	cancel  context.CancelCauseFunc
}

func newWatchState(index, conn int, g *goal, startsWithState bool) *watchState {
	return &watchState{
		record: watchRecord{Kind: "watch", Watch: index, Conn: conn},
		goal:   g, hash: sha256.New(), initial: startsWithState,
	}
}

// observe takes in one frame and reports whether the watch has seen all it should.
func (w *watchState) observe(frame []byte, event watchEvent) (done bool) {
	now := time.Now().UnixNano()
	if w.record.FirstFrameNS == 0 {
		w.record.FirstFrameNS = now
		if w.chained {
			w.chain = []string{w.digest()}
		}
	}
	w.record.Bytes += int64(len(frame))
	if event.kind == "BOOKMARK" {
		w.record.Bookmarks++
		w.record.BookmarkRV = event.rv
		w.initial = false
	} else {
		// The state that a watch may start with consists of additions.
		w.initial = w.initial && event.kind == "ADDED"
		if !w.initial && w.goal.reached(event.rv-1) {
			// Later than wanted. Whether it is still seen is a matter of luck, so that
			// it would make equal watches differ.
			return true
		}
		w.hash.Write(frame)
		w.record.Events++
		w.record.LastRV = event.rv
		if w.record.FirstRV == 0 {
			w.record.FirstRV = event.rv
		}
		if w.chained {
			w.chain = append(w.chain, w.digest())
		}
	}
	if event.initialEnd {
		w.record.InitialEvents = w.record.Events
	}
	if w.verbose != nil {
		w.writeFrame(frame, event, now)
	}
	if w.initial {
		return false
	}
	w.lastRV.Store(event.rv)
	return w.goal.reached(event.rv)
}

func (w *watchState) writeFrame(frame []byte, event watchEvent, now int64) {
	sum := sha256.Sum256(frame)
	w.verbose.write(frameRecord{
		Kind: "frame", Watch: w.record.Watch, Seq: w.record.Events, Type: event.kind, RV: event.rv,
		Key: event.key, SHA256: hex.EncodeToString(sum[:]), Chain: w.digest(), AtNS: now,
	})
}

func (w *watchState) digest() string { return hex.EncodeToString(w.hash.Sum(nil)) }

// end records how the watch ended.
func (w *watchState) end(how, detail string) {
	w.record.Ended, w.record.Detail = how, detail
	w.record.SHA256 = w.digest()
	w.record.EndedNS = time.Now().UnixNano()
}

// endByError is end for a failed read. If the driver itself cancelled the watch, the
// error is only the echo of that.
func (w *watchState) endByError(ctx context.Context, err error) {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errComplete):
		w.end(endedComplete, "")
	case errors.Is(cause, errPeriod):
		w.end(endedPeriod, "")
	case cause != nil:
		w.end(endedTimeout, cause.Error())
	case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		w.end(endedEOF, "")
	default:
		w.end(endedReadError, err.Error())
	}
}
