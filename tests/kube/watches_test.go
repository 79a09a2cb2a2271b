package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// watchServer answers every request with the same frames, but spoils those of one.
type watchServer struct {
	frames  [][]byte
	spoil   func(frames [][]byte) [][]byte // for the third request
	answers atomic.Int64
	remotes chan string
}

func (s *watchServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	frames := s.frames
	if s.answers.Add(1) == 3 && s.spoil != nil {
		frames = s.spoil(frames)
	}
	s.remotes <- r.RemoteAddr
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(bytes.Join(frames, nil))
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// start serves with or without TLS, over HTTP/1 and HTTP/2.
func (s *watchServer) start(t *testing.T, secure bool) *rest.Config {
	t.Helper()
	s.remotes = make(chan string, 100)
	server := httptest.NewUnstartedServer(s)
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols = protocols
	server.EnableHTTP2 = true
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.CloseClientConnections)
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: secure}}
}

// watchFour runs four watches and a reference against the server and returns the
// summary line and the error.
func watchFour(t *testing.T, s *watchServer, protocol string, conns int, secure bool) (string, error) {
	t.Helper()
	config := s.start(t, secure)
	o := watchOptions{
		path: "/pods", query: "resourceVersion=1", accept: "json", protocol: protocol,
		count: 4, conns: conns, goal: &goal{untilRV: "20"},
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "out")
	out, err := openLines(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	runErr := runWatches(ctx, config, config, &o, out)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return all[len(all)-1], runErr
}

func eventFrames(t *testing.T) [][]byte {
	var frames [][]byte
	for rv := 2; rv <= 20; rv++ {
		frames = append(frames, jsonFrame(t, "ADDED", fmt.Sprintf("pod-%d", rv), fmt.Sprint(rv)))
	}
	return frames
}

func TestWatchesUseTheConnectionsAskedFor(t *testing.T) {
	for _, test := range []struct {
		protocol string
		conns    int
		secure   bool
	}{{"h1", 4, false}, {"h1", 4, true}, {"h2", 1, true}, {"h2", 3, true}, {"h2", 2, false}} {
		s := &watchServer{frames: eventFrames(t)}
		summary, err := watchFour(t, s, test.protocol, test.conns, test.secure)
		if err != nil || !strings.Contains(summary, `"equal":4,"prefix":0,"different":0`) {
			t.Errorf("%+v: %v: %s", test, err, summary)
		}
		close(s.remotes)
		remotes := map[string]bool{}
		for remote := range s.remotes {
			remotes[remote] = true
		}
		if want := test.conns + 1; len(remotes) != want { // one for the reference
			t.Errorf("%+v: the server saw %d connections, want %d", test, len(remotes), want)
		}
	}
}

// Every way in which a proxy could spoil a stream must be noticed.
func TestSpoiledWatchesAreFound(t *testing.T) {
	for name, spoil := range map[string]func([][]byte) [][]byte{
		"lost": func(f [][]byte) [][]byte { return append(append([][]byte{}, f[:5]...), f[6:]...) },
		"repeated": func(f [][]byte) [][]byte {
			return append(append([][]byte{}, f[:5]...), f[4:]...)
		},
		"swapped": func(f [][]byte) [][]byte {
			swapped := append([][]byte{}, f...)
			swapped[5], swapped[6] = swapped[6], swapped[5]
			return swapped
		},
		"rewritten": func(f [][]byte) [][]byte {
			rewritten := append([][]byte{}, f...)
			rewritten[5] = bytes.Replace(rewritten[5], []byte(`,"object"`), []byte(`, "object"`), 1)
			return rewritten
		},
	} {
		summary, err := watchFour(t, &watchServer{frames: eventFrames(t), spoil: spoil}, "h2", 1, true)
		if err == nil || !strings.Contains(summary, `"different":`) || strings.Contains(summary, `"different":0`) {
			t.Errorf("%s: not noticed: %v: %s", name, err, summary)
		}
	}
}
