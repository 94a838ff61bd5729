// An expression for the page: the texts that stand out too little from what is behind them (WCAG AA: 4.5 to 1, large
// texts 3 to 1).

export const contrastFaults = `(${find})()`;

function find() {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [br, bg, bb]) =>
    [r, g, b].map((value, at) => value * a + [br, bg, bb][at] * (1 - a));
  const behind = (element) => {
    const chain = [];
    for (let one = element; one; one = one.parentElement)
      chain.unshift(rgba(getComputedStyle(one).backgroundColor));
    return chain.reduce((below, colour) => over(colour, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faults = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (text === "" || !element.checkVisibility() || element.closest(".hidden, noscript, :disabled")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(rgba(style.color), back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5))
      faults.add(`${text.slice(0, 30)} (${element.className || element.tagName}): ${ratio.toFixed(2)}`);
  }
  return [...faults];
}
