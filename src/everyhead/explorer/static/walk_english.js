export const WALK_ENGLISH = {
  w_intro:
    "One attention, step by step, with this model's own numbers. Choose a head and a word; every " +
    "figure below is what the model computed for it.",
  w_word: "Word",
  w_step: "Step {n} of {m}",
  w_back: "Back",
  w_on: "On",
  w_tokens: "Words become vectors",
  w_tokens_text:
    "The model never sees letters. Each piece of text is looked up in a table and becomes a vector of " +
    "{width} numbers; where it stands in the sentence is added to it or turned into it. This is what " +
    "enters layer {layer} at the chosen word:",
  w_qkv: "Three questions to every word",
  w_qkv_text:
    "Think of a database. A query says what is looked for, a key says what an entry can be found by, a " +
    "value is what the entry holds. Three learned maps make all three from the same vector: q = xW_Q, " +
    "k = xW_K, v = xW_V. In this head each has {width} numbers.",
  w_q: "q: what this word looks for",
  w_k: "k: what the strongest word offers to be found by",
  w_v: "v: what that word hands over when it is found",
  w_scores: "How well does each key fit the query?",
  w_scores_text:
    "A database wants an exact match; attention takes a degree. The score is the dot product q·k, times " +
    "{scale}: without that factor, scores would grow with the width of the head and softmax would " +
    "choose one word and nothing else.",
  w_bias_text: " This model adds a bias to each score, which depends on the distance of the two words.",
  w_mask: "Who may be looked at?",
  w_mask_none: "Here everybody may look at everybody: no score is taken out.",
  w_mask_some:
    "{n} of {m} words may not be looked at from here. Their scores are taken out before the softmax, so " +
    "they get no share at all. That is not the same as a very small share.",
  w_softmax: "Scores become shares",
  w_softmax_text:
    "Softmax makes positive shares that sum to 1: exp(score) divided by the sum of all of them. A " +
    "database gives one entry; attention gives a bit of each.",
  w_values: "The values are mixed",
  w_values_text:
    "Each word's value is multiplied by its share, and all are added: out = Σ w·v. What comes out is no " +
    "word but a mixture, mostly of the words with the largest shares. Its first numbers:",
  w_heads: "Many heads, one output",
  w_heads_text:
    "This layer has {n} heads, which do the same with maps of their own and look for different things. " +
    "Their outputs are laid side by side and mapped by W_O back to {width} numbers.",
  w_residual: "Added to what was there",
  w_residual_text:
    "The result is added to the word's own vector (the residual), so a layer changes the word and does " +
    "not replace it; a normalisation keeps the numbers in range. A feed-forward network then works on " +
    "each word alone: FFN(x) = f(xW₁ + b₁)W₂ + b₂. Before and after this layer:",
  w_before: "before",
  w_after: "after",
  w_layers: "Layer after layer",
  w_layers_text:
    "The next layer does all of this again with what this one made. How long the word's vector is after " +
    "each layer:",
  w_logits: "What comes out",
  w_logits_text:
    "After the last layer, the vector of the last word is compared with every piece of the vocabulary. " +
    "These products are the logits; softmax makes them probabilities of what comes next:",
  w_logits_encoder:
    "This model does not write. The vectors after its last layer are its answer: each word as it is meant " +
    "in this sentence.",
  w_logits_made: "After the last layer, the model wrote, piece by piece:",
  w_length: "length",
  w_first: "first numbers",
  w_share: "share",
  w_score: "score",
  w_heatNote: "Everything else in this page is these numbers, for all words, heads and layers at once.",
};
