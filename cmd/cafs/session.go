package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/mount/api"
	"cafs/mount/repo"
	"cafs/store"
)

// blocks is what commands do with a store, be it open here or in a daemon.
type blocks interface {
	linksys.Blocks
	store.Sizer
	store.Enumerator
}

// session is a repository as commands see it: opened by this process when it is
// free, and through its daemon when it is mounted.
type session struct {
	path   string
	blocks blocks
	sys    *linksys.System
	repo   *repo.Repo  // nil when a daemon has it
	client *api.Client // nil when no daemon has it
}

// commandWait is how long a command waits for another one to be done with the repository.
const commandWait = time.Minute

// open opens the repository for the named command; tune may change how.
func open(ctx context.Context, path, command string, tune func(*repo.Options)) (*session, error) {
	path, err := repo.Resolve(path)
	if err != nil {
		return nil, err
	}
	log := slog.New(newMessages(os.Stderr, slog.LevelWarn))
	c, err := api.Dial(ctx, path)
	if err == nil {
		return &session{path: path, blocks: c, client: c, sys: linksys.New(c, linksys.Options{Logger: log})}, nil
	}
	if !errors.Is(err, api.ErrNoDaemon) {
		return nil, err
	}
	o := repo.Options{Holder: repo.Holder{Command: "cafs " + command, State: repo.StateBusy}, Wait: repo.Wait{Busy: commandWait, Closing: commandWait, Tell: waiting}, Logger: log}
	if tune != nil {
		tune(&o)
	}
	_, missing := repo.ReadConfig(path)
	r, err := repo.Open(ctx, path, o)
	if err != nil {
		return nil, err
	}
	if errors.Is(missing, repo.ErrNotRepo) {
		notef("made the repository %s, profile %s", r.Path, r.Config.Profile)
	}
	return &session{path: path, blocks: r.Store, sys: r.Sys, repo: r}, nil
}

// waiting says for whom we wait.
func waiting(e *repo.LockedError) { notef("waiting: %v", e) }

func (s *session) Close() error {
	if s.client != nil {
		return errors.Join(s.sys.Close(), s.client.Close())
	}
	return s.repo.Close()
}

// closing closes s at the end of a command and keeps the first error.
func (s *session) closing(err *error) {
	if e := s.Close(); *err == nil {
		*err = e
	}
}

// sync makes the blocks put so far durable.
func (s *session) sync(ctx context.Context) error {
	if s.client != nil {
		return s.client.Sync(ctx)
	}
	return s.repo.Store.Sync(ctx)
}

// parsePath splits CID[/path]; /ipfs/CID and ipfs://CID are understood too.
func parsePath(arg string) (root cid.Cid, path string, err error) {
	text := strings.TrimPrefix(strings.TrimPrefix(arg, "ipfs://"), "/ipfs/")
	name, path, _ := strings.Cut(text, "/")
	root, err = cid.Decode(name)
	if err != nil {
		if _, e := os.Lstat(arg); e == nil {
			return cid.Undef, "", repo.Hint(usagef("%q is a file here and no CID", arg), "'cafs cid %s' prints the CID of a file on a mount, 'cafs add' makes one", shellQuote(arg))
		}
		return cid.Undef, "", usagef("%q is no CID: %v", name, err)
	}
	return root, path, nil
}

// resolve finds what CID[/path] names.
func (s *session) resolve(ctx context.Context, arg string) (cid.Cid, error) {
	root, path, err := parsePath(arg)
	if err != nil {
		return cid.Undef, err
	}
	t, err := s.sys.Resolve(ctx, root, path)
	if err != nil {
		return cid.Undef, s.explain(arg, err)
	}
	if len(t.Remaining) > 0 {
		return cid.Undef, fmt.Errorf("%s: it is a value inside the block %s", arg, t.Cid)
	}
	return t.Cid, nil
}

// explain says where a block was looked for.
func (s *session) explain(arg string, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return repo.Hint(fmt.Errorf("%s: %w", arg, err), "it is not in the repository %s; name another with --repo", s.path)
	}
	return fmt.Errorf("%s: %w", arg, err)
}
