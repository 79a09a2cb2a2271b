package main

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// readFrames splits body to its end and returns copies of the frames.
func readFrames(t *testing.T, body io.Reader, contentType string) ([]string, error) {
	t.Helper()
	reader, err := newFrameReader(body, contentType)
	if err != nil {
		t.Fatal(err)
	}
	var frames []string
	for {
		frame, err := reader.next()
		if err != nil {
			return frames, err
		}
		frames = append(frames, string(frame))
	}
}

func lengthPrefixed(payload string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(payload)))) + payload
}

func TestFramesAreSplitWhole(t *testing.T) {
	long := strings.Repeat("x", 100_000) // several times the read buffer
	for contentType, frames := range map[string][]string{
		"application/json":                                 {"{}\n", `{"a":"` + long + `"}` + "\n", "\n"},
		"application/json;stream=watch":                    {"{}\n"},
		"application/vnd.kubernetes.protobuf;stream=watch": {lengthPrefixed("ab"), lengthPrefixed(long), lengthPrefixed("")},
	} {
		body := strings.Join(frames, "")
		for name, reader := range map[string]io.Reader{
			"at once":      strings.NewReader(body),
			"byte by byte": iotest.OneByteReader(strings.NewReader(body)),
		} {
			got, err := readFrames(t, reader, contentType)
			if err != io.EOF {
				t.Errorf("%s %s: ended with %v, want EOF", contentType, name, err)
			}
			if strings.Join(got, "|") != strings.Join(frames, "|") {
				t.Errorf("%s %s: got %d frames, want %d, or other bytes", contentType, name, len(got), len(frames))
			}
		}
	}
}

// A body cut off inside a frame must not look like one that ended.
func TestCutFramesAreAnError(t *testing.T) {
	for _, body := range []string{lengthPrefixed("abc")[:2], lengthPrefixed("abc")[:4], lengthPrefixed("abc")[:5]} {
		if _, err := readFrames(t, strings.NewReader(body), protobufMedia); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: ended with %v", body, err)
		}
	}
	if _, err := readFrames(t, strings.NewReader("{}\n{"), "application/json"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut line: ended with %v", err)
	}
}

func TestOtherContentTypesAreRefused(t *testing.T) {
	for _, contentType := range []string{"", "text/plain", "application/cbor-seq"} {
		if _, err := newFrameReader(strings.NewReader(""), contentType); err == nil {
			t.Errorf("%q was accepted", contentType)
		}
	}
}

func jsonFrame(t *testing.T, kind, name, rv string) []byte {
	t.Helper()
	return []byte(`{"type":"` + kind + `","object":{"kind":"Pod","metadata":{"namespace":"ns","name":"` + name + `","resourceVersion":"` + rv + `"}}}` + "\n")
}

func protobufFrame(t *testing.T, kind string, object interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := (&runtime.Unknown{Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	event := metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: append([]byte(protobufMagic), envelope...)}}
	payload, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return []byte(lengthPrefixed(string(payload)))
}

func TestEventsOfBothEncodings(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "7"},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
	end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	gone := &metav1.Status{Code: 410, Reason: "Expired", Message: "too old"}
	table := []byte(`{"type":"MODIFIED","object":{"kind":"Table","metadata":{},"rows":[{"object":{"metadata":{"name":"b","resourceVersion":"8"}}}]}}` + "\n")
	for _, test := range []struct {
		frame    []byte
		protobuf bool
		want     watchEvent
	}{
		{jsonFrame(t, "ADDED", "a", "7"), false, watchEvent{kind: "ADDED", key: "ns/a", rv: 7}},
		{table, false, watchEvent{kind: "MODIFIED", key: "b", rv: 8}},
		{protobufFrame(t, "DELETED", pod), true, watchEvent{kind: "DELETED", key: "ns/a", rv: 7}},
		{protobufFrame(t, "BOOKMARK", end), true, watchEvent{kind: "BOOKMARK", rv: 9, initialEnd: true}},
		{protobufFrame(t, "ERROR", gone), true, watchEvent{kind: "ERROR", status: "410 Expired: too old"}},
	} {
		cache := newEventCache()
		for range 2 { // parsed, then from the cache
			got, err := cache.parse(test.frame, test.protobuf)
			if err != nil || got != test.want {
				t.Errorf("%q: got %+v, %v; want %+v", test.frame, got, err, test.want)
			}
		}
	}
}
