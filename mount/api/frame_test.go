package api

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

// frame is a whole frame as it goes over the wire.
func frame(t testing.TB, msg any, body []byte) []byte {
	t.Helper()
	b, err := appendHead(msg, body)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, body...)
}

func TestFrameRoundTrip(t *testing.T) {
	for _, body := range [][]byte{nil, {0}, bytes.Repeat([]byte("x"), maxBody)} {
		in := Request{Version: Version, Op: "op", Arg: json.RawMessage(`{"a":[1,2]}`)}
		wire := frame(t, in, body)
		var out Request
		got, err := readFrame(bytes.NewReader(wire[headSize:]), wire[:headSize], &out)
		if err != nil || !bytes.Equal(got, body) || out.Op != in.Op || !bytes.Equal(out.Arg, in.Arg) {
			t.Errorf("body of %d bytes: %+v, %d bytes, %v", len(body), out, len(got), err)
		}
		for _, cut := range []int{headSize, headSize + 1, len(wire) - 1} {
			if _, err := readFrame(bytes.NewReader(wire[headSize:cut]), wire[:headSize], &out); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("cut at %d of %d: %v", cut, len(wire), err)
			}
		}
	}
	if _, err := appendHead(Request{Op: strings.Repeat("x", maxJSON)}, nil); err == nil {
		t.Error("a request over the limit was encoded")
	}
	if _, err := appendHead(Request{}, make([]byte, maxBody+1)); err == nil {
		t.Error("a body over the limit was encoded")
	}
}

func TestFrameSizes(t *testing.T) {
	for _, c := range []struct {
		js, body uint32
		ok       bool
	}{{1, 0, true}, {maxJSON, maxBody, true}, {0, 0, false}, {0, 5, false}, {maxJSON + 1, 0, false}, {1, maxBody + 1, false}, {1<<32 - 1, 1<<32 - 1, false}, {1 << 31, 1, false}} {
		var head [headSize]byte
		binary.BigEndian.PutUint32(head[:], c.js)
		binary.BigEndian.PutUint32(head[4:], c.body)
		js, body, err := frameSizes(head[:])
		if (err == nil) != c.ok || c.ok && (js != int(c.js) || body != int(c.body)) {
			t.Errorf("sizes %d and %d: %d, %d, %v", c.js, c.body, js, body, err)
		}
	}
}

// FuzzFrame: whatever arrives, reading it ends without a panic and without
// taking more than the limits; what is accepted is the same after encoding it again.
func FuzzFrame(f *testing.F) {
	f.Add(frame(f, Request{Version: 1, Op: OpBlockGet, Arg: json.RawMessage(`{"cid":{"/":"bafkqaaa"}}`)}, nil))
	f.Add(frame(f, Reply{Last: true, Err: &Error{Kind: "busy", Msg: "in use"}}, []byte("body")))
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		if len(wire) < headSize {
			return
		}
		if js, n, err := frameSizes(wire); err == nil && js+n > len(wire) {
			return // cut short, as TestFrameRoundTrip has it; slow, since the room is taken at once
		}
		var r Reply
		body, err := readFrame(bytes.NewReader(wire[headSize:]), wire[:headSize], &r)
		if err != nil {
			return
		}
		again := frame(t, r, body)
		var r2 Reply
		body2, err := readFrame(bytes.NewReader(again[headSize:]), again[:headSize], &r2)
		if err != nil || !bytes.Equal(body, body2) || r.Last != r2.Last || (r.Err == nil) != (r2.Err == nil) {
			t.Fatalf("%q: %+v became %+v, %v", wire, r, r2, err)
		}
	})
}
