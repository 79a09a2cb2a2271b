package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// watchRun is a number of equal watches, opened at the same time.
type watchRun struct {
	options *watchOptions
	cache   *eventCache
	watches []*watchState
	conns   []*connection

	opening chan struct{}  // bounds the requests not answered yet
	opened  sync.WaitGroup // all watches: a response, or the failure to get one
	readers sync.WaitGroup // the watches that are read all the time
	stuck   sync.WaitGroup // the others
	release chan struct{}  // closed when the readers are done and the stuck ones go on
}

const maxOpening = 64

// stuckPeriod is how long stuck watches are read in the end, when no resource version
// says when they are complete.
const stuckPeriod = 5 * time.Second

func newWatchRun(o *watchOptions) *watchRun {
	return &watchRun{options: o, cache: newEventCache(), opening: make(chan struct{}, maxOpening), release: make(chan struct{})}
}

// add makes a watch that start will open on one of the connections.
func (r *watchRun) add(index, conn int) *watchState {
	w := newWatchState(index, conn, r.options.goal, startsWithState(r.options.query))
	r.watches = append(r.watches, w)
	return w
}

// connect opens n more connections, a few at a time.
func (r *watchRun) connect(ctx context.Context, d *dialer, n int) error {
	conns := make([]*connection, n)
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for index := range n {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			conn, err := d.dial(ctx)
			conns[index] = conn
			errs <- err
		}()
	}
	var failed error
	for range n {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	r.conns = append(r.conns, conns...)
	return failed
}

// start sends the requests of all watches, spread evenly over the connections.
func (r *watchRun) start(ctx context.Context) {
	for _, w := range r.watches {
		ctx, cancel := context.WithCancelCause(ctx)
		w.cancel = cancel
		group := &r.readers
		if w.record.Stuck {
			group = &r.stuck
		}
		r.opened.Add(1)
		group.Go(func() {
			defer cancel(nil)
			r.follow(ctx, w)
		})
	}
}

// wait returns when all watches have ended.
func (r *watchRun) wait(ctx context.Context) {
	go r.conduct(ctx)
	r.readers.Wait()
	close(r.release)
	if r.options.goal.period > 0 {
		timer := time.AfterFunc(stuckPeriod, func() {
			for _, w := range r.watches {
				w.cancel(errPeriod)
			}
		})
		defer timer.Stop()
	}
	r.stuck.Wait()
	for _, conn := range r.conns {
		conn.conn.Close()
	}
}

// conduct ends watches for reasons that they cannot see in their own frames.
func (r *watchRun) conduct(ctx context.Context) {
	r.opened.Wait()
	if period := r.options.goal.period; period > 0 {
		sleep(ctx, period)
		r.cancelReaders(false)
		// The reference goes last: it must have seen whatever another one saw.
		sleep(ctx, time.Second)
		r.cancelReaders(true)
		return
	}
	r.options.goal.resolve(ctx)
	for _, w := range r.watches {
		if r.options.goal.reached(w.lastRV.Load()) {
			w.cancel(errComplete)
		}
	}
}

func (r *watchRun) cancelReaders(reference bool) {
	for _, w := range r.watches {
		if !w.record.Stuck && (w.record.Watch == referenceIndex) == reference {
			w.cancel(errPeriod)
		}
	}
}

// follow runs one watch from its request to its end.
func (r *watchRun) follow(ctx context.Context, w *watchState) {
	r.opening <- struct{}{}
	conn := r.conns[w.record.Conn]
	response, err := conn.get(ctx, r.options.path, r.options.query, r.options.accept)
	<-r.opening
	w.record.OpenedNS = time.Now().UnixNano()
	r.opened.Done()
	if err != nil {
		if ctx.Err() != nil {
			w.endByError(ctx, err)
			return
		}
		w.end(endedNotOpened, err.Error())
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		w.end(endedHTTPError, fmt.Sprintf("%s: %s", response.Status, strings.TrimSpace(string(body))))
		return
	}
	if want := r.options.major(); response.ProtoMajor != want {
		w.end(endedHTTPError, fmt.Sprintf("the server answered in %s, wanted HTTP/%d", response.Proto, want))
		return
	}
	r.read(ctx, w, response)
}

func (r *watchRun) read(ctx context.Context, w *watchState, response *http.Response) {
	contentType := response.Header.Get("Content-Type")
	frames, err := newFrameReader(response.Body, contentType)
	if err != nil {
		w.end(endedReadError, err.Error())
		return
	}
	_, protobuf := frames.(*lengthFrames)
	for first := true; ; first = false {
		frame, err := frames.next()
		if err != nil {
			w.endByError(ctx, err)
			return
		}
		event, err := r.cache.parse(frame, protobuf)
		if err != nil {
			w.end(endedReadError, err.Error())
			return
		}
		if event.kind == "ERROR" {
			w.end(endedErrorEvent, event.status)
			return
		}
		if w.observe(frame, event) {
			w.end(endedComplete, "")
			return
		}
		if first && w.record.Stuck {
			select {
			case <-r.release:
			case <-ctx.Done():
			}
		}
	}
}

// startsWithState reports whether a watch with this query begins with the current
// objects, which come in no order of resource versions.
func startsWithState(query string) bool {
	values, err := url.ParseQuery(query)
	if err != nil {
		return false
	}
	rv := values.Get("resourceVersion")
	return values.Get("sendInitialEvents") == "true" || (values.Get("sendInitialEvents") == "" && (rv == "" || rv == "0"))
}
