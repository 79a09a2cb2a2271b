package main

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// watchEvent is what the driver needs to know of a frame.
type watchEvent struct {
	kind       string // ADDED, MODIFIED, DELETED, BOOKMARK or ERROR
	key        string
	rv         uint64
	initialEnd bool   // a bookmark that ends the initial events
	status     string // of an ERROR
}

// parseEvent reads a frame of either encoding, as split by a frameReader.
func parseEvent(frame []byte, protobuf bool) (watchEvent, error) {
	if protobuf {
		return parseProtobufEvent(frame[4:])
	}
	return parseJSONEvent(frame)
}

func parseJSONEvent(frame []byte) (watchEvent, error) {
	var event struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(frame, &event); err != nil {
		return watchEvent{}, fmt.Errorf("parse JSON event: %w", err)
	}
	if event.Type == "ERROR" {
		var status metav1.Status
		if err := json.Unmarshal(event.Object, &status); err != nil {
			return watchEvent{}, fmt.Errorf("parse JSON status: %w", err)
		}
		return errorEvent(status), nil
	}
	type partial struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	// A Table has the object's metadata in its only row.
	var object struct {
		partial
		Rows []struct {
			Object partial `json:"object"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(event.Object, &object); err != nil {
		return watchEvent{}, fmt.Errorf("parse JSON object: %w", err)
	}
	if len(object.Rows) == 1 {
		return objectEvent(event.Type, object.Rows[0].Object.Metadata)
	}
	return objectEvent(event.Type, object.Metadata)
}

// protobufMagic starts every object in protobuf.
const protobufMagic = "k8s\x00"

func parseProtobufEvent(frame []byte) (watchEvent, error) {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame); err != nil {
		return watchEvent{}, fmt.Errorf("parse protobuf event: %w", err)
	}
	raw := event.Object.Raw
	if len(raw) < len(protobufMagic) || string(raw[:len(protobufMagic)]) != protobufMagic {
		return watchEvent{}, fmt.Errorf("a protobuf object does not start with %q", protobufMagic)
	}
	var object runtime.Unknown
	if err := object.Unmarshal(raw[len(protobufMagic):]); err != nil {
		return watchEvent{}, fmt.Errorf("parse protobuf envelope: %w", err)
	}
	if event.Type == "ERROR" {
		var status metav1.Status
		if err := status.Unmarshal(object.Raw); err != nil {
			return watchEvent{}, fmt.Errorf("parse protobuf status: %w", err)
		}
		return errorEvent(status), nil
	}
	// Metadata is field 1 of all objects, and protobuf skips the fields not known.
	var partial metav1.PartialObjectMetadata
	if err := partial.Unmarshal(object.Raw); err != nil {
		return watchEvent{}, fmt.Errorf("parse protobuf metadata: %w", err)
	}
	return objectEvent(event.Type, partial.ObjectMeta)
}

func errorEvent(status metav1.Status) watchEvent {
	return watchEvent{kind: "ERROR", status: fmt.Sprintf("%d %s: %s", status.Code, status.Reason, status.Message)}
}

func objectEvent(kind string, object metav1.ObjectMeta) (watchEvent, error) {
	rv, err := parseRV(object.ResourceVersion)
	if err != nil {
		return watchEvent{}, fmt.Errorf("%s event of %s: %w", kind, objectKey(&object), err)
	}
	event := watchEvent{kind: kind, rv: rv, initialEnd: kind == "BOOKMARK" && object.Annotations[metav1.InitialEventsAnnotationKey] == "true"}
	if kind != "BOOKMARK" {
		event.key = objectKey(&object)
	}
	return event, nil
}

// eventCache parses each distinct frame once, however many watches receive it. Without
// it, thousands of watches would mostly measure the driver's parser.
type eventCache struct {
	seed   maphash.Seed
	mutex  sync.RWMutex
	parsed map[frameID]watchEvent
}

type frameID struct {
	hash   uint64
	length int
}

const maxCachedEvents = 1 << 16

func newEventCache() *eventCache {
	return &eventCache{seed: maphash.MakeSeed(), parsed: map[frameID]watchEvent{}}
}

func (c *eventCache) parse(frame []byte, protobuf bool) (watchEvent, error) {
	id := frameID{maphash.Bytes(c.seed, frame), len(frame)}
	c.mutex.RLock()
	event, known := c.parsed[id]
	c.mutex.RUnlock()
	if known {
		return event, nil
	}
	event, err := parseEvent(frame, protobuf)
	if err != nil {
		return event, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.parsed) >= maxCachedEvents {
		clear(c.parsed)
	}
	c.parsed[id] = event
	return event, nil
}
