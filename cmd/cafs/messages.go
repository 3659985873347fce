package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// messages is the log of a foreground mount: a slog.Handler that writes like
// the rest of the program speaks, "cafs: warning: text, key value".
type messages struct {
	w     io.Writer
	mu    *sync.Mutex // whole lines
	level slog.Level
	attrs string // of With, formatted
}

func newMessages(w io.Writer, level slog.Level) *messages {
	return &messages{w: w, mu: new(sync.Mutex), level: level}
}

// Enabled implements slog.Handler.
func (m *messages) Enabled(_ context.Context, l slog.Level) bool { return l >= m.level }

// Handle implements slog.Handler.
func (m *messages) Handle(_ context.Context, r slog.Record) error {
	kind := ""
	switch {
	case r.Level >= slog.LevelError:
		kind = "error: "
	case r.Level >= slog.LevelWarn:
		kind = "warning: "
	}
	var b strings.Builder
	b.WriteString(kind + r.Message + m.attrs)
	r.Attrs(func(a slog.Attr) bool { b.WriteString(format(a)); return true })
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := fmt.Fprintf(m.w, "cafs: %s\n", escape(b.String()))
	return err
}

func format(a slog.Attr) string { return fmt.Sprintf(", %s %v", a.Key, a.Value.Resolve()) }

// WithAttrs implements slog.Handler.
func (m *messages) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *m
	for _, a := range attrs {
		n.attrs += format(a)
	}
	return &n
}

// WithGroup implements slog.Handler; groups are not shown.
func (m *messages) WithGroup(string) slog.Handler { return m }
