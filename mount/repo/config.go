package repo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cafs/linksys/unixfs"
	"cafs/shard"
)

// Version is the format of the repository folder that this program writes.
const Version = 1

// DefaultProfile is the profile of a repository for which none was chosen.
const DefaultProfile = "unixfs-v1-2025"

// Config is what was decided when a repository was made, and stays.
type Config struct {
	Version int    `json:"version"`
	Profile string `json:"profile"` // how the tree's contents get their addresses
	Shard   string `json:"shard"`   // how blocks/ was laid out at first; its SHARDING file has the last word
	// Capacity is how many bytes of blocks there may be; 0: as many as the disk has room for.
	Capacity int64 `json:"capacity,omitempty"`
}

// MinCapacity is the least that a repository can be limited to, in bytes.
const MinCapacity = 16 << 20

const maxConfig = 64 << 10 // bytes

// withDefaults fills what was left open.
func (c Config) withDefaults() Config {
	c.Version = Version
	if c.Profile == "" {
		c.Profile = DefaultProfile
	}
	if c.Shard == "" {
		c.Shard = shard.Default.String()
	} else if f, err := shard.Parse(c.Shard); err == nil {
		c.Shard = f.String() // in full
	}
	return c
}

// check refuses settings that no part of the repository could work with.
func (c Config) check() error {
	if _, err := shard.Parse(c.Shard); err != nil {
		return fmt.Errorf("repo: config: %w", err)
	}
	p, err := unixfs.ParseProfile(c.Profile)
	if err != nil {
		return fmt.Errorf("repo: config: %w", err)
	}
	if c.Capacity != 0 && c.Capacity < MinCapacity {
		return Hint(fmt.Errorf("repo: config: a capacity of %d bytes is too small: %w", c.Capacity, unix.EINVAL), "the least is %d", MinCapacity)
	}
	if p.Chunker != "" {
		return Hint(fmt.Errorf("repo: config: profile %q cuts by content, which is not for trees that change", c.Profile),
			"choose chunker=size-N here, and any chunker for 'cafs add'")
	}
	return nil
}

// ReadConfig reads the config of the repository at path.
// Errors: ErrNotRepo, ErrVersion, ErrDamaged.
func ReadConfig(path string) (Config, error) {
	name := filepath.Join(path, ConfigName)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Config{}, missingConfig(path)
	} else if err != nil {
		return Config{}, fmt.Errorf("repo: config: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return Config{}, fmt.Errorf("repo: config: %w", err)
	}
	var c Config
	if err := json.Unmarshal(b, &c); err != nil || c.Version < 1 {
		return Config{}, restoreConfig(fmt.Errorf("repo: %s is not a config: %w", name, ErrDamaged))
	}
	if c.Version > Version {
		err := fmt.Errorf("repo: %s: %w %d, this program knows up to %d", name, ErrVersion, c.Version, Version)
		return Config{}, Hint(err, "use the newer cafs that wrote this repository")
	}
	return c, nil
}

// missingConfig tells a repository that lost its config from a folder that
// never was one: the index is made after the config.
func missingConfig(path string) error {
	if ents, err := os.ReadDir(filepath.Join(path, IndexName)); err == nil && len(ents) > 0 {
		return restoreConfig(fmt.Errorf("repo: %s is missing: %w", filepath.Join(path, ConfigName), ErrDamaged))
	}
	return Hint(fmt.Errorf("repo: %s: %w", path, ErrNotRepo),
		"make one with 'cafs init' or 'cafs mount', or name another with --repo")
}

func restoreConfig(err error) error {
	b, _ := json.Marshal(Config{}.withDefaults())
	return Hint(err, "put the file back from a copy; one made with default settings is: %s", b)
}

// Init makes a repository at path, which must be missing, empty, or left by an
// interrupted Init; its parent must exist. Everything is durable when it
// returns. The caller does not hold the lock. Errors: ErrExists.
func Init(path string, c Config) error {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("repo: init: %w", err)
	}
	if err := canInit(path); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o700); err != nil { // what is kept is for its owner, whatever the folder was before
		return fmt.Errorf("repo: init: %w", err)
	}
	for _, name := range []string{BlocksName, IndexName, StagingName} {
		if err := os.Mkdir(filepath.Join(path, name), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("repo: init: %w", err)
		}
	}
	if err := writeConfig(path, c); err != nil {
		return fmt.Errorf("repo: init: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("repo: init: %w", err)
	}
	return nil
}

// canInit refuses a folder with anything in it that Init does not make.
func canInit(path string) error {
	ents, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("repo: init: %w", err)
	}
	for _, e := range ents {
		switch e.Name() {
		case ConfigName:
			return Hint(fmt.Errorf("repo: %s: %w", path, ErrExists), "use it as it is, or choose another folder")
		case BlocksName, StagingName, LockName, ConfigName + ".new":
		case IndexName:
			if err := missingConfig(path); !errors.Is(err, ErrNotRepo) {
				return err
			}
		default:
			return Hint(fmt.Errorf("repo: init: %s is not empty (it has %q)", path, e.Name()),
				"choose an empty or a new folder for the repository")
		}
	}
	return nil
}

// writeConfig puts the config in place whole, or not at all.
func writeConfig(path string, c Config) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(path, ConfigName+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(path, ConfigName))
	}
	if err == nil {
		err = syncDir(path)
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
