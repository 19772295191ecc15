// Keeps the end of a growing page in sight, until somebody scrolls up.

const NEAR_PX = 48;

/** `follow()` goes to the end and stays there, `leave()` ends that; `grown()` is called after the page has grown;
 *  `start()` and `stop()` bound the time in which the page is looked at. `onChange(isFollowing)` is told. */
export function pageFollower(onChange) {
  let isFollowing = true;
  let isOn = false;
  let lastTop = 0;
  const page = () => document.scrollingElement;
  const distance = () => page().scrollHeight - page().clientHeight - page().scrollTop;

  function set(value) {
    isFollowing = value;
    onChange(value);
  }
  function onScroll() {
    const top = page().scrollTop;
    if (distance() < NEAR_PX) set(true);
    else if (top < lastTop - 1) set(false); // only a person scrolls up
    lastTop = top;
  }
  function grown() {
    if (!isOn || !isFollowing) return;
    page().scrollTop = page().scrollHeight;
    lastTop = page().scrollTop;
  }
  return {
    grown,
    leave: () => set(false),
    follow() {
      set(true);
      grown();
    },
    start() {
      if (isOn) return;
      isOn = true;
      lastTop = page().scrollTop;
      addEventListener("scroll", onScroll, { passive: true });
    },
    stop() {
      isOn = false;
      removeEventListener("scroll", onScroll);
    },
  };
}
