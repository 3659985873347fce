package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"cafs/store"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/storage"
)

// Storage is a cafs store behind go-ipld-prime's storage interfaces. Keys are
// binary CIDs, as a LinkSystem makes them. What is put is hashed, whatever the
// LinkSystem did before; cafs's own LinkSystem (package linksys) does not go
// through here.
type Storage struct {
	s interface {
		store.Getter
		store.Putter
		store.Haser
	}
}

var (
	_ storage.ReadableStorage          = (*Storage)(nil)
	_ storage.WritableStorage          = (*Storage)(nil)
	_ storage.StreamingReadableStorage = (*Storage)(nil)
	_ storage.StreamingWritableStorage = (*Storage)(nil)
	_ storage.VectorWritableStorage    = (*Storage)(nil)
	_ storage.PeekableStorage          = (*Storage)(nil)
)

// NewStorage adapts s, which stays the caller's.
func NewStorage(s store.Store) *Storage { return &Storage{s} }

func cidOf(key string) (cid.Cid, error) {
	c, err := cid.Cast([]byte(key))
	if err != nil {
		return cid.Undef, fmt.Errorf("adapter: %x: %w", key, ErrKey)
	}
	return c, nil
}

// Has tells whether a block is there.
func (s *Storage) Has(ctx context.Context, key string) (bool, error) {
	c, err := cidOf(key)
	if err != nil {
		return false, err
	}
	return s.s.Has(ctx, c)
}

// Get returns a block, checked; read-only.
func (s *Storage) Get(ctx context.Context, key string) ([]byte, error) {
	c, err := cidOf(key)
	if err != nil {
		return nil, err
	}
	return s.s.Get(ctx, c)
}

// Peek is Get: a block stays valid after the closer was closed.
func (s *Storage) Peek(ctx context.Context, key string) ([]byte, io.Closer, error) {
	b, err := s.Get(ctx, key)
	return b, io.NopCloser(nil), err
}

// stream reads a block. Its Bytes lets codecs take all of it without a copy.
type stream struct {
	bytes.Reader
	block []byte
}

func (s *stream) Bytes() []byte { return s.block[len(s.block)-s.Len():] }
func (s *stream) Close() error  { return nil }

// GetStream reads a block, which was checked before the first byte is served.
func (s *Storage) GetStream(ctx context.Context, key string) (io.ReadCloser, error) {
	b, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	r := &stream{block: b}
	r.Reset(b)
	return r, nil
}

// Put stores a block.
func (s *Storage) Put(ctx context.Context, key string, content []byte) error {
	c, err := cidOf(key)
	if err != nil {
		return err
	}
	return store.PutVerified(ctx, s.s, c, content)
}

// PutVec stores a block that is in pieces.
func (s *Storage) PutVec(ctx context.Context, key string, blobVec [][]byte) error {
	return s.Put(ctx, key, bytes.Join(blobVec, nil))
}

// errTooLong ends a stream that cannot become a block.
var errTooLong = errors.New("longer than a block may be")

// limited collects a block that is being written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > store.MaxBlock {
		return 0, fmt.Errorf("adapter: put: %w", errTooLong)
	}
	return l.Buffer.Write(p)
}

// PutStream collects a block in memory and stores it when the key is known.
func (s *Storage) PutStream(ctx context.Context) (io.Writer, func(key string) error, error) {
	buf := new(limited)
	return buf, func(key string) error { return s.Put(ctx, key, buf.Bytes()) }, nil
}
