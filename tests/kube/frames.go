package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
)

// A frameReader splits the body of a watch into frames, one per event. The bytes it
// returns are those on the wire, delimiters included, and are valid until the next
// call.
type frameReader interface {
	next() ([]byte, error)
}

// maxFrame guards against reading garbage as a length; no event is that large.
const maxFrame = 64 << 20

// newFrameReader chooses the framing by the content type of the response: protobuf
// watches prefix each event with its length, JSON watches end it with a newline.
func newFrameReader(body io.Reader, contentType string) (frameReader, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("content type %q: %w", contentType, err)
	}
	buffered := bufio.NewReaderSize(body, 8<<10)
	switch media {
	case protobufMedia:
		return &lengthFrames{reader: buffered}, nil
	case "application/json":
		return &lineFrames{reader: buffered}, nil
	default:
		return nil, fmt.Errorf("content type %q: neither JSON nor protobuf", contentType)
	}
}

type lineFrames struct {
	reader *bufio.Reader
	buffer []byte
}

func (f *lineFrames) next() ([]byte, error) {
	f.buffer = f.buffer[:0]
	for {
		part, err := f.reader.ReadSlice('\n')
		f.buffer = append(f.buffer, part...)
		switch {
		case err == nil:
			return f.buffer, nil
		case errors.Is(err, bufio.ErrBufferFull) && len(f.buffer) < maxFrame:
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("a line of more than %d bytes", maxFrame)
		case errors.Is(err, io.EOF) && len(f.buffer) > 0:
			return nil, fmt.Errorf("%w: after %d bytes of a frame", io.ErrUnexpectedEOF, len(f.buffer))
		default:
			return nil, err
		}
	}
}

type lengthFrames struct {
	reader *bufio.Reader
	buffer []byte
}

func (f *lengthFrames) next() ([]byte, error) {
	var prefix [4]byte
	if n, err := io.ReadFull(f.reader, prefix[:]); err != nil {
		if n > 0 && errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: after %d bytes of a frame's length", err, n)
		}
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(prefix[:]))
	if length > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", length)
	}
	f.buffer = append(f.buffer[:0], prefix[:]...)
	if cap(f.buffer) < 4+length {
		f.buffer = append(make([]byte, 0, 4+length), prefix[:]...)
	}
	f.buffer = f.buffer[:4+length]
	if n, err := io.ReadFull(f.reader, f.buffer[4:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%w: after %d of %d bytes of a frame", err, 4+n, 4+length)
	}
	return f.buffer, nil
}
